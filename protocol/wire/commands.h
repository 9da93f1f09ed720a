// Bodies of the commands in commands.def and of the replies to them, written by the client library and read
// by workers: fixed structs, followed by variable parts where a comment says so. Sizes are bytes, handles are
// minted by the client (protocol/calls/handles.h), everything is little-endian. copies.h, graphs.h, images.h,
// peers.h and sharing.h have the bodies of their subjects.
#pragma once
#include <cstdint>

#include "protocol/wire/frame.h"

namespace gpupool::wire {

// ping: no body; answered at once by MessageKind::pong, also while the executor works.
// goodbye: no body; the client is about to close the connection.
// acknowledge: in a session that can be resumed; no reply.
struct Acknowledge {
  uint64_t received;  // bytes that the client has received since its HelloReply
  uint32_t leaving;   // 1: the program is ending, so the session need not wait if the connection breaks now
  uint32_t reserved;
};
static_assert(kIsBody<Acknowledge, 16>);

// move_addresses: reserves another address range if that of HelloReply is not free in the client; reply:
// AddressRange.
struct MoveAddresses {
  uint64_t preferred_base;  // free in the client; 0: any
  uint64_t size;
};
// avoid_addresses: a range that the client uses for something else (another server's memory, or the program's
// own). The worker reserves what is free of it, so that the device places nothing there.
struct AddressRange {
  uint64_t base;
  uint64_t size;
};

// The reply to retain_primary_context and create_context has the handle if the command has made the context,
// even if the reply's result is the error of an earlier command.
struct PrimaryContext {  // retain_, release_, reset_primary_context
  uint64_t handle;
  int32_t device;
  uint32_t flags;  // CUctx_flags, retain only
};
struct CreateContext {
  uint64_t handle;
  int32_t device;
  uint32_t flags;  // CUctx_flags, and kGreenContext: the uint64_t handle of describe_resources follows
};
// Flag of CreateContext: makes a green context, which uses memory, modules and events of the device's primary
// context.
constexpr uint32_t kGreenContext = 1u << 31;
// device_resource: asks for the multiprocessors of a device or context; reply: ResourceInfo.
struct DeviceResource {
  uint64_t context;  // 0: those of the device
  int32_t device;
  uint32_t type;  // CUdevResourceType
};
struct ResourceInfo {
  uint64_t number;  // the server's number of the resource; 0: there is none
  uint32_t multiprocessors;
  uint32_t smallest;   // multiprocessors in the smallest partition
  uint32_t alignment;  // multiprocessors; partitions have a multiple of it
  uint32_t reserved;
};
// split_resource: splits a resource into equal groups; reply: ResourceGroups, then their ResourceInfos and
// one for the remainder.
constexpr uint32_t kMaxResourceGroups = 4096;
struct SplitResource {
  uint64_t resource;
  uint32_t groups;  // most groups
  uint32_t flags;
  uint32_t least;       // least multiprocessors per group
  uint32_t only_count;  // 1: only asks how many groups there would be
};
struct ResourceGroups {
  uint32_t groups;
  uint32_t given;  // number of groups whose ResourceInfo follows
};
// describe_resources: `count` numbers of resources (u64) follow.
struct DescribeResources {
  uint64_t description;  // new handle
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
// own_stream: names a stream of the client library's own. Other streams may wait for its copies (data of
// graph nodes, pages of faults), so these do not wait for barriers, that is, for work that all streams must
// wait for.
struct OwnStream {
  uint64_t stream;
};
// await_barriers: no body; answered once all earlier barriers have been given to the device. The client asks
// before it copies between servers in a stream of its own, which does not wait for them.
// await_room: answered at once if the stream waits for nothing, else when the backlog is shorter
// (kSendAwaitRoom).
struct AwaitRoom {
  uint64_t stream;
};
// await_record: answered once the device has all earlier records of the event. For interprocess events.
struct AwaitRecord {
  uint64_t event;
};

// map_memory: maps device memory to unmapped addresses of the session's range, in multiples of
// Device.granularity. Reply: u64 address if it was mapped, even if the reply's result is the error of an
// earlier command.
struct MapMemory {
  uint64_t address;
  uint64_t size;
  int32_t device;
  uint32_t peers;  // bitmask of other devices of the session that get access, too
};
// free_memory: takes effect when everything queued before it (in `stream`, or in the whole context if that is
// kAllStreams) has completed. MessageHeader::retired then reaches this command's sequence number.
constexpr uint64_t kAllStreams = ~0ull;
struct FreeMemory {
  uint64_t address;
  uint64_t size;  // bytes to unmap; 0: only reports when the addresses may be reused
  uint64_t stream;
};

// launch: attribute_count CUlaunchAttributes follow, then parameter_bytes of packed parameters.
constexpr uint32_t kLaunchCooperative = 1;
constexpr uint32_t kLaunchExtended = 2;  // cuLaunchKernelEx: has attributes
constexpr uint32_t kMaxLaunchAttributes = 64;
constexpr uint32_t kMaxParameterBytes = 32764;  // CUDA's limit since 12.1 (4 KiB before)
struct Launch {
  uint64_t function;  // handle of a function or kernel
  uint64_t stream;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  uint32_t flags;
  uint32_t attribute_count;
  uint32_t parameter_bytes;
};

// host_function: when the stream gets there, the server sends MessageKind::host_callback with `callback`, and
// the stream goes on after host_function_done. All host_callback messages of one command, also of a graph
// launch, have its sequence number. A message with an error as result and 0 as `callback` says that the
// command's functions which have not been announced will not be called.
struct HostFunction {
  uint64_t stream;
  uint64_t callback;
};
struct HostFunctionDone {
  uint64_t callback;
  // not 0: takes effect when this stream has done its earlier work (the host function's copies)
  uint64_t stream;
};

// hold_stream: stops the stream here until resume_stream with the same `hold`, a number that the client uses
// for no other hold or host function.
struct HoldStream {
  uint64_t stream;
  uint64_t hold;
};
struct ResumeStream {
  uint64_t hold;
};

// destroy_array: destroys an array or mipmapped array when earlier work of its context has completed. Reply:
// empty.
struct DestroyArray {
  uint64_t array;
};
// array_part: makes a handle of a mipmapped array's level or an array's plane, which is destroyed with the
// whole. Reply: empty.
struct ArrayPart {
  uint64_t handle;  // new array
  uint64_t whole;   // the mipmapped array, or the array
  uint32_t number;  // of the level or plane
  uint32_t reserved;
};
// get_reference: the name (text) of a texture or surface reference of the module follows. Reply: empty.
struct GetReference {
  uint64_t handle;  // new texture or surface reference
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
