// Bodies of the commands in commands.def and of the messages that answer them: fixed structs, then variable parts where
// the comment says so. All sizes in bytes, all handles minted by the client (protocol/cuda/handles.h), little-endian.
// copies.h, graphs.h, images.h and sharing.h have those of their subjects.
#pragma once
#include <cstdint>

#include "protocol/wire/frame.h"

namespace gpupool::wire {

// ping: no body; answered by MessageKind::pong at once, also while the executor works.
// goodbye: no body; the client is about to close in an orderly way.

struct MoveAddresses {  // the range proposed in HelloReply is not free in the client; reply: AddressRange
  uint64_t wished_base; // free in the client; 0: any
  uint64_t size;
};
// avoid_addresses: an AddressRange that means something else to the client (another server's memory, the program's own), so that the
// device places nothing of its own there. As far as it is free.
struct AddressRange {
  uint64_t base;
  uint64_t size;
};

// retain_primary_context and create_context reply with the handle if the context was made by them, whatever an earlier command's error.
struct PrimaryContext {  // retain_, release_, reset_primary_context
  uint64_t handle;
  int32_t device;
  uint32_t flags;        // CUctx_flags, retain only
};
struct CreateContext {
  uint64_t handle;
  int32_t device;
  uint32_t flags;        // CUctx_flags, and kGreenContext: uint64_t, what describe_resources described, follows
};
// Of CreateContext: a green context, which uses what the device's primary context has.
constexpr uint32_t kGreenContext = 1u << 31;
// device_resource: the multiprocessors of a device or context; reply: ResourceInfo.
struct DeviceResource {
  uint64_t context;      // 0: the device's
  int32_t device;
  uint32_t type;         // CUdevResourceType
};
struct ResourceInfo {
  uint64_t number;       // by which the server knows it; 0: there is nothing
  uint32_t multiprocessors;
  uint32_t smallest;     // partition
  uint32_t alignment;    // of partitions
  uint32_t reserved;
};
// split_resource: into equal groups; reply: ResourceGroups, its ResourceInfos, and one of what remains.
constexpr uint32_t kMaxResourceGroups = 4096;
struct SplitResource {
  uint64_t resource;
  uint32_t groups;       // at most
  uint32_t flags;
  uint32_t least;        // multiprocessors in each
  uint32_t only_count;   // 1: how many would there be?
};
struct ResourceGroups {
  uint32_t groups;
  uint32_t given;        // as many follow
};
// describe_resources: `count` numbers follow.
struct DescribeResources {
  uint64_t description;  // handle
  uint32_t count;
  uint32_t reserved;
};
struct DestroyContext {
  uint64_t handle;
};

// synchronize_context: no body (the header names the context).
struct SynchronizeStream {
  uint64_t stream;
};
struct SynchronizeEvent {
  uint64_t event;
};
// own_stream: the client copies in this stream what other streams wait for: data of a graph's node, pages of a fault. Such copies do not wait for
// what all streams are to wait for.
struct OwnStream {
  uint64_t stream;
};
// await_barriers, without a body: answered once everything that came before and that all streams are to wait for has been given to the device. The
// client asks before it copies between servers in a stream of its own.
// await_room: answered at once if the stream waits for nothing, else when fewer commands wait for their streams (kBacklogLong).
struct AwaitRoom {
  uint64_t stream;
};
// await_record: answered once the device has every record of the event that came before. For events that other processes wait for.
struct AwaitRecord {
  uint64_t event;
};

// map_memory: device memory behind addresses of the session's range that have none. Multiples of Device.granularity.
// Reply: u64 address when it was done, also when the result is an earlier command's error.
struct MapMemory {
  uint64_t address;
  uint64_t size;
  int32_t device;
  uint32_t peers;  // bits of other devices of the session that get access, too
};
// free_memory: takes effect when everything queued before it (on `stream`, or on the whole context when stream is
// kAllStreams) has run; MessageHeader::retired then reaches this command's sequence number.
constexpr uint64_t kAllStreams = ~0ull;
struct FreeMemory {
  uint64_t address;
  uint64_t size;        // to unmap; 0: only tell when the place may be reused
  uint64_t stream;
};

// launch: attribute_count CUlaunchAttribute, then parameter_bytes of packed parameters follow.
constexpr uint32_t kLaunchCooperative = 1;
constexpr uint32_t kLaunchExtended = 2;  // cuLaunchKernelEx: the attributes apply
constexpr uint32_t kMaxLaunchAttributes = 64;
constexpr uint32_t kMaxParameterBytes = 32764;  // CUDA's limit since 12.1 (4 KiB before)
struct Launch {
  uint64_t function;    // function or kernel
  uint64_t stream;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  uint32_t flags;
  uint32_t attribute_count;
  uint32_t parameter_bytes;
};

// host_function: when the stream gets there, the server sends MessageKind::host_callback with `callback` and the stream
// goes on after host_function_done. All messages about the functions of a command, those of a graph's launch too, have its sequence number. One
// with an error as result, and 0 as `callback`, says that those functions of it which have not been announced are not called.
struct HostFunction {
  uint64_t stream;
  uint64_t callback;
};
struct HostFunctionDone {
  uint64_t callback;
  uint64_t stream;  // not 0: done when this stream has done what it got so far (copies of the host function)
};

// hold_stream: the stream goes no further than here until resume_stream with the same hold, a number of the client's that
// no host function has either.
struct HoldStream {
  uint64_t stream;
  uint64_t hold;
};
struct ResumeStream {
  uint64_t hold;
};

// destroy_array: an array or a mipmapped array, when what its context has got so far is done. Reply: empty.
struct DestroyArray {
  uint64_t array;
};
// array_part: a level of a mipmapped array, or a plane of an array; it goes with the whole. Reply: empty.
struct ArrayPart {
  uint64_t handle;      // new array
  uint64_t whole;
  uint32_t number;
  uint32_t reserved;
};
// get_reference: name (text) of a module's texture or surface reference follows. Reply: empty.
struct GetReference {
  uint64_t handle;      // new texture or surface reference
  uint64_t module;
};
struct SetBorderColor {
  uint64_t reference;
  float color[4];
};

static_assert(kIsBody<MoveAddresses, 16>);
static_assert(kIsBody<AddressRange, 16>);
static_assert(kIsBody<PrimaryContext, 16>);
static_assert(kIsBody<CreateContext, 16>);
static_assert(kIsBody<DeviceResource, 16>);
static_assert(kIsBody<ResourceInfo, 24>);
static_assert(kIsBody<SplitResource, 24>);
static_assert(kIsBody<ResourceGroups, 8>);
static_assert(kIsBody<DescribeResources, 16>);
static_assert(kIsBody<MapMemory, 24>);
static_assert(kIsBody<FreeMemory, 24>);
static_assert(kIsBody<HoldStream, 16>);
static_assert(kIsBody<ResumeStream, 8>);
static_assert(kIsBody<Launch, 56>);
static_assert(kIsBody<HostFunction, 16>);
static_assert(kIsBody<HostFunctionDone, 16>);
static_assert(kIsBody<DestroyArray, 8>);
static_assert(kIsBody<ArrayPart, 24>);
static_assert(kIsBody<GetReference, 16>);
static_assert(kIsBody<SetBorderColor, 24>);

}  // namespace gpupool::wire
