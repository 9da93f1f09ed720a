#include "server/softgpu/jit/program.h"

#include <llvm/IR/LLVMContext.h>

#include <mutex>
#include <unordered_map>

#include "server/softgpu/jit/code_key.h"
#include "server/softgpu/jit/codegen.h"
#include "server/softgpu/jit/engine.h"
#include "server/softgpu/jit/link.h"

namespace gpupool::softgpu {
namespace {

// Messages quote the PTX text, which may contain any bytes; they must stay one printable line.
CompileError one_line(CompileError error) {
  constexpr size_t kMaxLength = 1000;
  if (error.message.size() > kMaxLength) error.message.resize(kMaxLength);
  for (char& c : error.message)
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) == 0x7F) c = ' ';
  return error;
}

class LinkedProgram final : public Program {
 public:
  LinkedProgram(std::shared_ptr<const Image> image, bool optimise, std::shared_ptr<CodeFile> code_file,
                const CodeKey& key)
      : image_(std::move(image)), optimise_(optimise), code_file_(std::move(code_file)), key_(key) {
    for (const LinkedKernel& kernel : image_->kernels) {
      kernel_index_.emplace(image_->functions[kernel.function].tree->name,
                            kernels_.size());  // the first of several kernels with the same name
      kernels_.push_back(kernel.info);
    }
    for (const DataVariable& data : image_->data) {
      if (data.tree->name.empty()) continue;
      if (data.tree->opaque != ptx::Opaque::none) {
        references_.push_back(
            {std::string(data.tree->name), data.offset, data.tree->opaque == ptx::Opaque::surface});
        continue;
      }
      global_index_.emplace(data.tree->name, globals_.size());
      globals_.push_back({std::string(data.tree->name), data.offset, data.tree->size,
                          data.tree->space == ptx::Space::constant, data.tree->is_managed});
    }
    code_.resize(kernels_.size());
    was_kept_.resize(kernels_.size());
  }

  std::span<const KernelInfo> kernels() const override { return kernels_; }
  std::span<const GlobalInfo> globals() const override { return globals_; }
  std::span<const ReferenceInfo> references() const override { return references_; }
  const KernelInfo* find_kernel(std::string_view name) const override {
    auto it = kernel_index_.find(name);
    return it == kernel_index_.end() ? nullptr : &kernels_[it->second];
  }
  const KernelInfo* kernel_at(uint64_t address) const override {
    const uint64_t distance = address - kFunctionAddressBase;
    if (distance % kFunctionAddressStep != 0) return nullptr;
    for (size_t n = 0; n < kernels_.size(); ++n)
      if (image_->kernels[n].function == distance / kFunctionAddressStep) return &kernels_[n];
    return nullptr;
  }
  bool uses_device_runtime() const override { return image_->uses_device_runtime; }
  const GlobalInfo* find_global(std::string_view name) const override {
    auto it = global_index_.find(name);
    return it == global_index_.end() ? nullptr : &globals_[it->second];
  }
  uint64_t data_bytes() const override { return image_->data_bytes; }
  uint64_t data_alignment() const override { return image_->data_alignment; }
  void write_data(std::span<std::byte> image, uint64_t address) const override {
    image_->write_data(image, address);
  }

  std::variant<KernelCode, CompileError> code(const KernelInfo& info) const override {
    if (&info < kernels_.data() || &info >= kernels_.data() + kernels_.size())
      return CompileError{CompileErrorCode::internal, "the kernel belongs to another program"};
    auto index = static_cast<size_t>(&info - kernels_.data());
    std::lock_guard lock(mutex_);
    if (code_[index].thread_entry) return code_[index];
    auto fail = [&](std::string message) {
      return CompileError{CompileErrorCode::internal,
                          "kernel " + info.name + ": " + message.substr(0, message.find('\n'))};
    };
    if (!engine_) {
      auto engine = Engine::create(optimise_);
      if (auto* problem = std::get_if<std::string>(&engine)) return fail(std::move(*problem));
      engine_ = std::move(std::get<std::unique_ptr<Engine>>(engine));
    }
    const std::string name = "kernel" + std::to_string(index);
    const bool has_loop = !info.synchronises;
    const CodeKey key = code_file_ ? key_within(key_, "kernel", index) : CodeKey{};
    if (code_file_) {
      if (const auto kept = code_file_->find(key)) {
        const auto code = engine_->load(name + "-kept", *kept, has_loop);
        if (const auto* good = std::get_if<KernelCode>(&code)) {
          was_kept_[index] = true;
          return code_[index] = *good;
        }
      }
    }
    llvm::LLVMContext context;
    llvm::Module module(name, context);
    if (auto error = generate_kernel(*image_, image_->kernels[index], module)) return one_line(*error);
    auto object = engine_->compile(module);
    if (auto* problem = std::get_if<std::string>(&object)) return fail(std::move(*problem));
    auto code = engine_->load(name, std::get<std::vector<char>>(object), has_loop);
    if (auto* problem = std::get_if<std::string>(&code)) return fail(std::move(*problem));
    if (code_file_) code_file_->add(key, std::get<std::vector<char>>(object));
    return code_[index] = std::get<KernelCode>(code);
  }

  bool came_from_cache(const KernelInfo& info) const override {
    std::lock_guard lock(mutex_);
    return was_kept_[static_cast<size_t>(&info - kernels_.data())];
  }

 private:
  std::shared_ptr<const Image> image_;
  bool optimise_;
  std::shared_ptr<CodeFile> code_file_;  // null: none
  CodeKey key_;                          // key of this program in code_file_
  std::vector<KernelInfo> kernels_;
  std::vector<GlobalInfo> globals_;
  std::vector<ReferenceInfo> references_;
  std::unordered_map<std::string_view, size_t> kernel_index_, global_index_;  // views into image_
  mutable std::mutex mutex_;                                                  // guards the members below
  mutable std::unique_ptr<Engine> engine_;
  mutable std::vector<KernelCode> code_;
  mutable std::vector<bool> was_kept_;
};

}  // namespace

std::variant<std::shared_ptr<const Program>, CompileError> compile(
    std::span<const std::string_view> ptx_texts, const CompileOptions& options) {
  auto image = link(ptx_texts, options);
  if (auto* error = std::get_if<CompileError>(&image)) return one_line(std::move(*error));
  auto& linked = std::get<std::shared_ptr<const Image>>(image);
  const auto key = options.code_file ? key_of_program(ptx_texts, options) : std::nullopt;
  const CodeKey checked = key ? key_within(*key, "checked") : CodeKey{};
  if (!key || !options.code_file->find(checked)) {
    if (auto error = check_functions(*linked)) return one_line(std::move(*error));
    if (key) options.code_file->add(checked, {});
  }
  return std::shared_ptr<const Program>(std::make_shared<LinkedProgram>(
      linked, options.optimise, key ? options.code_file : nullptr, key.value_or(CodeKey{})));
}

}  // namespace gpupool::softgpu
