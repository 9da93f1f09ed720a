#include "server/worker/images/linkers.h"

#include <algorithm>
#include <cstring>

namespace gpupool::worker {

Linkers::OptionList Linkers::list(Options options) {
  OptionList made;
  for (const wire::JitOption& option : options) {
    made.names.push_back(static_cast<CUjit_option>(option.option));
    made.values.push_back(reinterpret_cast<void*>(option.value));
  }
  return made;
}

std::string Linkers::take_log(Linker& linker) {
  std::string log(linker.error, ::strnlen(linker.error, sizeof linker.error));
  log.append(linker.info, ::strnlen(linker.info, sizeof linker.info));
  linker.error[0] = linker.info[0] = '\0';
  return log;
}

Linkers::Linker* Linkers::find(uint64_t linker) const {
  const auto found = linkers_.find(linker);
  return found == linkers_.end() ? nullptr : found->second.get();
}

const ContextState* Linkers::context_of(uint64_t linker) const {
  const Linker* const found = find(linker);
  return found ? found->context : nullptr;
}

CUresult Linkers::create(uint64_t handle, const ContextState& context, Options options) {
  if (!api_.cuLinkCreate_v2 || !api_.cuLinkAddData_v2 || !api_.cuLinkComplete || !api_.cuLinkDestroy)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (linkers_.contains(handle)) return CUDA_ERROR_INVALID_HANDLE;
  if (linkers_.size() >= kMaxLinkers) return CUDA_ERROR_OUT_OF_MEMORY;
  auto linker = std::make_unique<Linker>();
  linker->context = &context;
  linker->options = list(options);
  auto& names = linker->options.names;
  auto& values = linker->options.values;
  const auto keep = [&](CUjit_option buffer, CUjit_option size, char* log) {
    names.insert(names.end(), {buffer, size});
    values.insert(values.end(), {log, reinterpret_cast<void*>(kJitLogBytes - 1)});
  };
  keep(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, linker->info);
  keep(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, linker->error);
  const CUresult result =
      api_.cuLinkCreate_v2(static_cast<unsigned>(names.size()), names.data(), values.data(), &linker->state);
  if (result == CUDA_SUCCESS) linkers_.emplace(handle, std::move(linker));
  return result;
}

CUresult Linkers::add(uint64_t handle, CUjitInputType type, std::span<const std::byte> bytes,
                      const std::string& name, Options options, std::string& log) {
  Linker* const linker = find(handle);
  if (!linker) return CUDA_ERROR_INVALID_HANDLE;
  auto& kept = *linker->of_inputs.emplace_back(std::make_unique<OptionList>(list(options)));
  // The size of PTX text includes its NUL; other inputs have none.
  const size_t size = bytes.size() + (type == CU_JIT_INPUT_PTX ? 1 : 0);
  const CUresult result =
      api_.cuLinkAddData_v2(linker->state, type, const_cast<std::byte*>(bytes.data()), size, name.c_str(),
                            static_cast<unsigned>(kept.names.size()), kept.names.data(), kept.values.data());
  log = take_log(*linker);
  return result;
}

CUresult Linkers::complete(uint64_t handle, uint64_t* size, std::string& log) {
  Linker* const linker = find(handle);
  if (!linker) return CUDA_ERROR_INVALID_HANDLE;
  void* image = nullptr;
  size_t bytes = 0;
  const CUresult result = api_.cuLinkComplete(linker->state, &image, &bytes);
  log = take_log(*linker);
  if (result != CUDA_SUCCESS) return result;
  linker->image = {static_cast<const std::byte*>(image), bytes};
  *size = bytes;
  return CUDA_SUCCESS;
}

std::span<const std::byte> Linkers::image(uint64_t handle, uint64_t offset) {
  Linker* const linker = find(handle);
  if (!linker || offset >= linker->image.size()) return {};
  const auto part = linker->image.subspan(
      offset, std::min<uint64_t>(wire::kMaxImagePartBytes, linker->image.size() - offset));
  linker->fetched = std::max<uint64_t>(linker->fetched, offset + part.size());
  return part;
}

bool Linkers::has_unfetched() const {
  return std::any_of(linkers_.begin(), linkers_.end(),
                     [](const auto& known) { return known.second->fetched < known.second->image.size(); });
}

CUresult Linkers::destroy(uint64_t handle) {
  const auto found = linkers_.find(handle);
  if (found == linkers_.end()) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = api_.cuLinkDestroy(found->second->state);
  linkers_.erase(found);
  return result;
}

void Linkers::drop(const ContextState& context) {
  std::erase_if(linkers_, [&](const auto& entry) {
    const Linker& linker = *entry.second;
    if (linker.context != &context) return false;
    api_.cuLinkDestroy(linker.state);
    return true;
  });
}

}  // namespace gpupool::worker
