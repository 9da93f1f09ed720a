// Handlers for resources of devices, for green contexts (resources.h).
#include "protocol/wire/commands.h"
#include "server/worker/handlers/commands.h"

namespace gpupool::worker::commands {

#if CUDA_VERSION >= 12040
namespace {

wire::ResourceInfo describe(Resources& resources, const CUdevResource& resource) {
  wire::ResourceInfo info{};
  if (resource.type != CU_DEV_RESOURCE_TYPE_SM || resource.sm.smCount == 0) return info;
  info.number = resources.keep(resource);
  info.multiprocessors = resource.sm.smCount;
#if CUDA_VERSION >= 13000
  info.smallest = resource.sm.minSmPartitionSize;
  info.alignment = resource.sm.smCoscheduledAlignment;
#endif
  return info;
}

}  // namespace

Outcome device_resource(Session& session, Command& command) {
  const auto body = read_exact_body<wire::DeviceResource>(command);
  if (!body) return bad_body();
  const auto device = session.start.visible.find(body->device);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (body->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  ContextState* context = nullptr;
  if (body->context != 0) {
    context = session.contexts.find(body->context);
    if (!context || context->device != *device) return CUDA_ERROR_INVALID_CONTEXT;
  } else if (session.start.groups_of(*device) != 0) {  // the session has only its primary context's part
    context = session.contexts.find_primary(*device);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  }
  CUdevResource resource{};
  const CUresult result =
      session.resources.get(*device, context ? context->object : nullptr, CU_DEV_RESOURCE_TYPE_SM, &resource);
  if (result == CUDA_SUCCESS) wire::Writer(session.replies.body).put(describe(session.resources, resource));
  return result;
}

Outcome split_resource(Session& session, Command& command) {
  const auto body = read_exact_body<wire::SplitResource>(command);
  if (!body || body->groups > wire::kMaxResourceGroups) return bad_body();
  const CUdevResource* const known = session.resources.find(body->resource);
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  const CUdevResource whole = *known;
  unsigned groups = body->groups;
  std::vector<CUdevResource> parts;
  CUdevResource remaining{};
  const CUresult result = session.resources.split(whole, &groups, body->flags, body->least,
                                                  body->only_count ? nullptr : &parts, &remaining);
  if (result != CUDA_SUCCESS) return result;
  wire::Writer writer(session.replies.body);
  writer.put(wire::ResourceGroups{groups, static_cast<uint32_t>(parts.size())});
  for (const CUdevResource& part : parts) writer.put(describe(session.resources, part));
  writer.put(describe(session.resources, remaining));
  return CUDA_SUCCESS;
}

Outcome describe_resources(Session& session, Command& command) {
  const auto head = command.body.get<wire::DescribeResources>();
  if (!command.body.ok() || head.count == 0 || head.count > wire::kMaxResourceGroups ||
      cuda::kind_of(head.description) != cuda::Kind::resource_description) {
    return bad_body();
  }
  std::vector<CUdevResource> resources;
  bool known = true;
  for (uint32_t i = 0; i < head.count; ++i) {
    const CUdevResource* const resource = session.resources.find(command.body.get<uint64_t>());
    known = known && resource;
    if (resource) resources.push_back(*resource);
  }
  if (!command.body.finished()) return bad_body();
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  CUdevResourceDesc description = nullptr;
  const CUresult result = session.resources.describe(resources, &description);
  if (result == CUDA_SUCCESS)
    session.table.bind(cuda::Kind::resource_description, head.description, description);
  return session.table.broken() ? Outcome::malformed("an invalid new handle") : Outcome(result);
}

#else

Outcome device_resource(Session&, Command&) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
Outcome split_resource(Session&, Command&) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
Outcome describe_resources(Session&, Command&) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

#endif

}  // namespace gpupool::worker::commands
