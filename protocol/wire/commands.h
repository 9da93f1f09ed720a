// Bodies of the commands in commands.def and of the messages that answer them: fixed structs, then variable parts where
// the comment says so. All sizes in bytes, all handles minted by the client (protocol/cuda/handles.h), little-endian.
#pragma once
#include <array>
#include <cstdint>
#include <type_traits>

#include "protocol/wire/frame.h"

namespace gpupool::wire {

// ping: no body; answered by MessageKind::pong at once, also while the executor works.
// goodbye: no body; the client is about to close in an orderly way.

struct MoveAddresses {  // the range proposed in HelloReply is not free in the client; reply: AddressRange
  uint64_t wished_base; // free in the client; 0: any
  uint64_t size;
};
// avoid_addresses: an AddressRange that means something else to the client (another server's), so that the device places
// nothing of its own there. As far as it is free.
struct AddressRange {
  uint64_t base;
  uint64_t size;
};

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

// map_memory: device memory behind addresses of the session's range that have none. Multiples of Device.granularity.
// Reply: u64 address when it was done, also when the result is an earlier command's error.
struct MapMemory {
  uint64_t address;
  uint64_t size;
  int32_t device;
  uint32_t reserved;
};
// free_memory: takes effect when everything queued before it (on `stream`, or on the whole context when stream is
// kAllStreams) has run; MessageHeader::retired then reaches this command's sequence number.
constexpr uint64_t kAllStreams = ~0ull;
struct FreeMemory {
  uint64_t address;
  uint64_t size;        // to unmap; 0: only tell when the place may be reused
  uint64_t stream;
};

// copy_to_device: `rows` rows of `width` bytes, packed, follow; row r goes to destination + r * pitch.
struct CopyToDevice {
  uint64_t stream;
  uint64_t destination;
  uint64_t pitch;
  uint32_t width;       // width * rows <= kBulkChunkBytes
  uint32_t rows;
  uint32_t flags;
  uint32_t reserved;
};
// The caller believes the copy done when its call returns: work that any stream of the context gets later comes after it.
constexpr uint32_t kCopyOrdersStreams = 1;
// Such copies do not hold this one up: another stream waits for it, perhaps the very one that they are behind.
constexpr uint32_t kCopyPassesOthers = 2;
// copy_from_device: rows come back packed in DeviceData messages, in order; a reply ends the transfer, also without
// kWantsReply (an error at its start is then told by the next reply that is waited for, as for any other command).
struct CopyFromDevice {
  uint64_t stream;
  uint64_t source;
  uint64_t pitch;
  uint64_t width;
  uint64_t rows;
};
struct DeviceData {     // then the bytes; the message's sequence number names the copy
  uint64_t offset;      // in the packed rows
};

// bulk_to_device, bulk_from_device: the rows travel packed, in pieces (BulkHeader) on the session's bulk connections, in any
// order. To the device: the client sends the pieces right behind the command. From the device: a reply on the command
// connection, sent after the last piece, ends the copy, also without kWantsReply; with an error, pieces may be missing.
struct BulkCopy {
  uint64_t stream;
  uint64_t device;      // address
  uint64_t pitch;       // of the rows in device memory
  uint64_t width;       // width * rows <= kMaxBulkCopyBytes; with more than one row, at most kBulkChunkBytes
  uint64_t rows;
  uint32_t flags;       // as CopyToDevice's; 0 from the device
  uint32_t reserved;
};
constexpr uint64_t kMaxBulkCopyBytes = uint64_t{1} << 30;
// bulk_to_peer: a copy from the device whose pieces this server sends to another one, where the client has announced it with
// bulk_to_device. Behind it three texts: the other server's address, the session there, its bulk token. Reply: when all has been
// sent; after an error some of it may have been. CUDA_ERROR_NOT_SUPPORTED: the other server cannot be reached from here.
struct PeerCopy {
  BulkCopy rows;        // flags 0
  uint64_t copy;        // sequence number of the announcement there
};
// cancel_bulk: a copy to the device whose data will not come, or not all of it; its stream goes on. Connections that other
// servers have opened are closed.
struct CancelBulk {
  uint64_t copy;
};
// direct_to_device, direct_from_device: the rows lie packed in memory that the client has registered for its connection
// (transport::DirectMemory), and the server reads it there, at the latest when the stream gets there, or writes it. A reply ends the copy, also
// without kWantsReply: the memory has been read, or all of it is written. CUDA_ERROR_NOT_SUPPORTED: the connection cannot.
// What cannot be read or written under this key ends the session.
struct DirectCopy {
  BulkCopy rows;        // flags as for the bulk commands
  uint64_t memory;      // address in the client, of rows.width * rows.rows bytes
  uint32_t key;
  uint32_t reserved;
};
// How the packed rows are cut: whole rows where there are several.
constexpr uint64_t bulk_piece_bytes(uint64_t width, uint64_t rows) {
  return rows == 1 ? kBulkChunkBytes : kBulkChunkBytes / width * width;
}

// upload_part: bytes of a module image, as a bundle (protocol/cuda/fatbin.h), follow. Parts come in order; an upload is
// consumed by the load that names it.
struct UploadPart {
  uint64_t upload;
  uint64_t total;       // whole size, the same in every part
};
// load_module, load_library: the image is the upload or, where that is 0, one that the server has by the ImageName that follows. Then
// JitOptions, as many as there are. Reply: text with the JIT's log (may be empty), and the milliseconds that it took (float). An empty body
// and kImageMissing: the server has no such image, or the proof is wrong; upload the image and load again.
struct LoadImage {
  uint64_t handle;      // new module or library
  uint64_t upload;
};
constexpr int32_t kImageMissing = 301;  // CUDA_ERROR_FILE_NOT_FOUND
using ImageDigest = std::array<uint8_t, 32>;
struct ImageName {      // see protocol/image/name.h
  uint64_t size;        // of the bundle, at most HelloReply.largest_image
  ImageDigest digest;   // SHA-256 of the bundle
  ImageDigest proof;    // SHA-256 of HelloReply.image_nonce and the bundle
};
// get_function, get_kernel: name (text) follows. Reply: FunctionInfo.
struct GetFunction {
  uint64_t handle;      // new function or kernel
  uint64_t owner;       // module or library
};
// kernel_names: what a module or library has. Reply: KernelNames.
struct GetKernelNames {
  uint64_t owner;       // module or library
  uint64_t first;       // of the names, in the server's order
};
struct KernelNames {    // then as many names from `first` on as fit kMaxNamesBytes, at least one if there is one, each with its NUL
  uint64_t count;       // of all
};
constexpr uint32_t kMaxNamesBytes = 256 * 1024;
// create_linker: then option_count times JitOption. The linker belongs to the current context. Reply: empty.
struct CreateLinker {
  uint64_t linker;      // new
  uint64_t option_count;
};
struct JitOption {      // one whose value is a number; logs travel in replies
  uint32_t option;      // CUjit_option
  uint32_t reserved;
  uint64_t value;       // as the program passes it
};
constexpr uint32_t kMaxJitOptions = 64;
// True for the options that may travel.
constexpr bool is_numeric_jit_option(uint32_t option) {
  return option <= 1 || (option >= 7 && option <= 16) || (option >= 20 && option <= 24) || (option >= 29 && option <= 34);
}
// add_link_input: then option_count times JitOption and the input's name (text). Reply: text with the linker's log.
struct AddLinkInput {
  uint64_t linker;
  uint64_t upload;      // the input's bytes, as they are
  uint32_t type;        // CUjitInputType
  uint32_t option_count;
};
// complete_link: Reply: LinkedImage, text with the linker's log.
struct CompleteLink {
  uint64_t linker;
};
struct LinkedImage {
  uint64_t size;        // 0: it failed
};
// linked_image: a part of what a completed linker made. Reply: its bytes, kMaxImagePartBytes of them where there are as many.
struct GetLinkedImage {
  uint64_t linker;
  uint64_t offset;
};
constexpr uint32_t kMaxImagePartBytes = 1u << 20;
struct DestroyLinker {
  uint64_t linker;
};
// kernel_function: the function of a kernel in the current context (cuKernelGetFunction). Reply: empty.
struct KernelFunction {
  uint64_t handle;      // new function
  uint64_t kernel;
};
constexpr uint32_t kFunctionAttributes = 16;  // CU_FUNC_ATTRIBUTE_* 0..15
constexpr uint32_t kMaxParameters = 4096;     // more than fit the 32764 bytes that CUDA allows a kernel
struct FunctionInfo {   // then parameter_count times ParameterInfo
  int32_t attributes[kFunctionAttributes];
  uint32_t parameter_count;
  uint32_t reserved;
};
struct ParameterInfo {
  uint32_t offset;
  uint32_t size;
};
// get_global: name (text) follows. Without a context only a library's managed variables are found. Reply: GlobalInfo.
struct GetGlobal {
  uint64_t owner;       // module or library
};
struct GlobalInfo {
  uint64_t address;
  uint64_t size;
  uint32_t managed;     // 1: the host uses it at the same address
  uint32_t reserved;
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
// goes on after host_function_done.
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

// share_host_memory: pinned memory of the program that the worker maps too, for the context that the header names. Its
// descriptor (a memfd of exactly `size` bytes, sealed against shrinking) was sent beside the bytes before. Only where the
// transport shares memory. Reply: SharedHostMemoryAt, also when its result is an earlier command's error.
struct ShareHostMemory {
  uint64_t memory;      // minted by the client, apart from handles
  uint64_t size;
  uint64_t address;     // where the program has it, and kernels should
};
struct SharedHostMemoryAt {
  uint64_t memory;
  uint64_t device;      // its address for kernels; 0: they cannot use it
};
// release_host_memory: no command will name it any more; copies that were queued before still use it.
struct ReleaseHostMemory {
  uint64_t memory;
};
// copy_shared: between the device and shared host memory of the stream's context, in the order of the stream: the memory is
// read or written when the stream gets there.
struct CopyShared {
  uint64_t stream;
  uint64_t device;
  uint64_t device_pitch;
  uint64_t memory;
  uint64_t offset;      // in the memory
  uint64_t host_pitch;
  uint64_t width;
  uint64_t rows;
  uint32_t to_device;   // 1: to the device; 0: from it
  uint32_t reserved;
};

// Graphs are built in the client; the server gets what is to be executed. graph_nodes: `count` times a GraphNode, its
// dependencies (u32 each, numbers of earlier nodes of the same graph) and its body follow; they are appended to the graph, which
// the first such command makes. What is wrong with a node is told by the command that uses the graph.
struct GraphNodes {
  uint64_t graph;
  uint32_t count;
  uint32_t reserved;
};
enum class GraphNodeKind : uint32_t {
  empty = 0,              // no body
  kernel = 1,             // Launch without a stream, its attributes and parameters
  fill = 2,               // GraphFill
  copy = 3,               // GraphCopy; CUDA_MEMCPY3D with handles of arrays, where an end is one
  host = 4,               // GraphHost
  event_record = 5,       // GraphEvent
  event_wait = 6,         // GraphEvent
  memory_operations = 7,  // CUstreamBatchMemOpParams, as many as there are
  condition = 8,          // GraphCondition; before all that name it, in the graph that is instantiated. Does nothing in a launch
  conditional = 9,        // GraphConditional, then as many handles of graphs (u64) as it has bodies, to which graph_nodes adds
};
constexpr uint64_t kMaxGraphNodes = 1u << 20;  // of one session, in all of its graphs
struct GraphNode {
  GraphNodeKind kind;
  uint32_t dependency_count;
  uint32_t body_bytes;
  uint32_t reserved;
  uint64_t context;       // 0 where the kind needs none
};
struct GraphFill {
  uint64_t address;
  uint64_t pitch;
  uint32_t value;
  uint32_t element;       // bytes: 1, 2 or 4
  uint64_t width;         // in elements
  uint64_t height;
};
struct GraphCopy {        // within the device
  uint64_t from, from_pitch, from_height;  // height: rows from one slice to the next
  uint64_t to, to_pitch, to_height;
  uint64_t width, height, depth;
};
// The client does something: a host function, or a copy from or to its memory. It is told with MessageKind::host_callback and
// answers with host_function_done, each time a launch gets there.
struct GraphHost {
  uint64_t callback;      // a number of the client's that no other host function, hold or node has
};
struct GraphEvent {
  uint64_t event;
};
// What cudaGraphSetConditional sets. Kernels' parameters have `handle` where the device's is to be.
struct GraphCondition {
  uint64_t handle;
  uint32_t initial;
  uint32_t at_launch;     // 0 or 1: it has the initial value at the beginning of each launch
};
// A body has kernels, fills, copies within the device, conditionals and empty nodes; it ends with the graph that it is in.
struct GraphConditional {
  uint64_t condition;
  uint32_t type;          // CUgraphConditionalNodeType
  uint32_t bodies;
};
constexpr uint32_t kMaxGraphBodies = 1u << 12;  // of one node
// instantiate_graph makes an executable graph of a graph, which it takes over; update_graph gives it the work of another graph of
// the same shape, which is gone then. Both reply with a GraphResult, also when the result is an error.
struct InstantiateGraph {
  uint64_t graph;
  uint64_t executable;    // new handle
  uint64_t flags;         // CUgraphInstantiate_flags
};
struct UpdateGraph {
  uint64_t executable;
  uint64_t graph;
};
constexpr uint32_t kNoGraphNode = ~0u;
struct GraphResult {
  uint32_t result;        // CUgraphInstantiateResult or CUgraphExecUpdateResult
  uint32_t node;          // that is to blame
};
// set_graph_node: new work for a node of an executable graph; a GraphNode without dependencies and its body follow.
// enable_graph_node: it is executed, or stands empty.
struct SetGraphNode {
  uint64_t executable;
  uint32_t node;          // number in the graph that the executable one was made of
  uint32_t enabled;       // 0 or 1; 0 for set_graph_node
};
struct LaunchGraph {      // launch_graph, upload_graph
  uint64_t executable;
  uint64_t stream;
};
struct DestroyGraph {
  uint64_t executable;    // or a graph that was not instantiated
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

// What one session of a tenant gives others: programs carry it between processes as CUDA's opaque handles, or in a file.
struct SharedName {
  uint32_t magic;         // kSharedName
  uint32_t kind;          // the client's: which of CUDA's handles it is
  uint64_t server;        // HelloReply.server_id
  uint64_t session;       // whose it is
  std::array<uint8_t, 16> secret;
  uint64_t offset;        // this and the next: of the allocation, in the memory
  uint64_t size;          // the client's
  uint64_t reserved;
};
constexpr uint32_t kSharedName = 0x52414853;  // "SHAR"
// export_memory: memory that the client has made (cuMemCreate), or what is mapped at an address by map_memory. Reply: SharedName, with
// the address's offset; the same until the memory is released. export_event: of an event of several processes. Reply: SharedName.
struct ExportMemory {
  uint64_t memory;        // 0: the address counts
  uint64_t address;
};
struct ExportEvent {
  uint64_t event;
};
// import_memory: as cuMemCreate, with the memory that the name stands for. Reply: ImportedMemory. CUDA_ERROR_INVALID_VALUE: nothing
// of this tenant's has that name now.
constexpr uint32_t kOfOthersOnly = 1;  // the session's own is refused (CUDA_ERROR_INVALID_CONTEXT)
struct ImportMemory {
  uint64_t memory;        // new
  SharedName name;
  uint32_t flags;
  uint32_t reserved;
};
struct ImportedMemory {
  uint64_t size;
  uint64_t handle_types;  // CUmemAllocationHandleType, as asked for when it was made
  int32_t device;
  uint32_t reserved;
};
struct ImportEvent {
  uint64_t event;         // new
  SharedName name;
};

#define GPUPOOL_BODY(type, bytes) static_assert(sizeof(type) == (bytes) && std::is_trivially_copyable_v<type>)
GPUPOOL_BODY(MoveAddresses, 16);
GPUPOOL_BODY(AddressRange, 16);
GPUPOOL_BODY(PrimaryContext, 16);
GPUPOOL_BODY(CreateContext, 16);
GPUPOOL_BODY(DeviceResource, 16);
GPUPOOL_BODY(ResourceInfo, 24);
GPUPOOL_BODY(SplitResource, 24);
GPUPOOL_BODY(ResourceGroups, 8);
GPUPOOL_BODY(DescribeResources, 16);
GPUPOOL_BODY(MapMemory, 24);
GPUPOOL_BODY(FreeMemory, 24);
GPUPOOL_BODY(CopyToDevice, 40);
GPUPOOL_BODY(CopyFromDevice, 40);
GPUPOOL_BODY(BulkCopy, 48);
GPUPOOL_BODY(PeerCopy, 56);
GPUPOOL_BODY(DirectCopy, 64);
GPUPOOL_BODY(CancelBulk, 8);
GPUPOOL_BODY(HoldStream, 16);
GPUPOOL_BODY(ResumeStream, 8);
GPUPOOL_BODY(UploadPart, 16);
GPUPOOL_BODY(LoadImage, 16);
GPUPOOL_BODY(ImageName, 72);
GPUPOOL_BODY(GetFunction, 16);
GPUPOOL_BODY(KernelFunction, 16);
GPUPOOL_BODY(FunctionInfo, 72);
GPUPOOL_BODY(GlobalInfo, 24);
GPUPOOL_BODY(Launch, 56);
GPUPOOL_BODY(HostFunction, 16);
GPUPOOL_BODY(HostFunctionDone, 16);
GPUPOOL_BODY(ShareHostMemory, 24);
GPUPOOL_BODY(SharedHostMemoryAt, 16);
GPUPOOL_BODY(ReleaseHostMemory, 8);
GPUPOOL_BODY(CopyShared, 72);
GPUPOOL_BODY(GraphNodes, 16);
GPUPOOL_BODY(GraphNode, 24);
GPUPOOL_BODY(GraphFill, 40);
GPUPOOL_BODY(GraphCopy, 72);
GPUPOOL_BODY(GraphHost, 8);
GPUPOOL_BODY(GraphEvent, 8);
GPUPOOL_BODY(GraphCondition, 16);
GPUPOOL_BODY(GraphConditional, 16);
GPUPOOL_BODY(InstantiateGraph, 24);
GPUPOOL_BODY(UpdateGraph, 16);
GPUPOOL_BODY(GraphResult, 8);
GPUPOOL_BODY(SetGraphNode, 16);
GPUPOOL_BODY(LaunchGraph, 16);
GPUPOOL_BODY(DestroyGraph, 8);
GPUPOOL_BODY(DestroyArray, 8);
GPUPOOL_BODY(ArrayPart, 24);
GPUPOOL_BODY(GetReference, 16);
GPUPOOL_BODY(SetBorderColor, 24);
GPUPOOL_BODY(SharedName, 64);
GPUPOOL_BODY(ExportMemory, 16);
GPUPOOL_BODY(ExportEvent, 8);
GPUPOOL_BODY(ImportMemory, 80);
GPUPOOL_BODY(ImportedMemory, 24);
GPUPOOL_BODY(ImportEvent, 72);
#undef GPUPOOL_BODY

}  // namespace gpupool::wire
