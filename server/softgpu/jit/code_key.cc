#include "server/softgpu/jit/code_key.h"

#include <elf.h>
#include <link.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h>
#include <llvm/Support/BLAKE3.h>

#include <string>

namespace gpupool::softgpu {
namespace {

class Hash {
 public:
  void add(std::string_view text) {
    add(text.size());
    state_.update(llvm::StringRef(text.data(), text.size()));
  }
  void add(uint64_t number) {
    state_.update(llvm::ArrayRef<uint8_t>(reinterpret_cast<const uint8_t*>(&number), sizeof number));
  }
  CodeKey result() { return state_.final<32>(); }

 private:
  llvm::BLAKE3 state_;
};

struct BuildIdSearch {
  uint64_t address;
  std::string id;
};

// Finds the build id of the loaded file that contains the address.
int look_for_build_id(dl_phdr_info* file, size_t, void* user) {
  auto& search = *static_cast<BuildIdSearch*>(user);
  bool contains = false;
  for (int i = 0; i < file->dlpi_phnum; ++i) {
    const auto& segment = file->dlpi_phdr[i];
    const uint64_t begin = file->dlpi_addr + segment.p_vaddr;
    contains |=
        segment.p_type == PT_LOAD && search.address >= begin && search.address - begin < segment.p_memsz;
  }
  if (!contains) return 0;
  for (int i = 0; i < file->dlpi_phnum; ++i) {
    const auto& segment = file->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const char*>(file->dlpi_addr + segment.p_vaddr);
    const char* const end = at + segment.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
      const char* const name = at + sizeof *note;
      const char* const content = name + ((note->n_namesz + 3) & ~3u);
      if (note->n_type == NT_GNU_BUILD_ID &&
          std::string_view(name, note->n_namesz) == std::string_view("GNU", 4))
        search.id.assign(content, note->n_descsz);
      at = content + ((note->n_descsz + 3) & ~3u);
    }
  }
  return 1;
}

std::string build_id_of(const void* address) {
  BuildIdSearch search{reinterpret_cast<uint64_t>(address), {}};
  dl_iterate_phdr(look_for_build_id, &search);
  return search.id;
}

// Returns everything except the program that code depends on; empty if unknown.
std::string compiler_identity() {
  const std::string own = build_id_of(reinterpret_cast<const void*>(&compiler_identity));
  const std::string llvm_build =
      build_id_of(reinterpret_cast<const void*>(&llvm::orc::JITTargetMachineBuilder::detectHost));
  if (own.empty() || llvm_build.empty()) return {};
  auto host = llvm::orc::JITTargetMachineBuilder::detectHost();
  if (!host) {
    llvm::consumeError(host.takeError());
    return {};
  }
  return "1\n" + own + '\n' + llvm_build + '\n' + LLVM_VERSION_STRING + '\n' + host->getTargetTriple().str() +
         '\n' + host->getCPU() + '\n' + host->getFeatures().getString();
}

}  // namespace

std::optional<CodeKey> key_of_program(std::span<const std::string_view> ptx_texts,
                                      const CompileOptions& options) {
  static const std::string identity = compiler_identity();
  if (identity.empty()) return std::nullopt;
  Hash hash;
  hash.add(identity);
  hash.add(options.compute_capability);
  hash.add(options.optimise ? 1 : 0);
  hash.add(static_cast<int>(options.converge_warps));
  hash.add(ptx_texts.size());
  for (const std::string_view text : ptx_texts) hash.add(text);
  return hash.result();
}

CodeKey key_within(const CodeKey& program, std::string_view part, uint64_t number) {
  Hash hash;
  hash.add(std::string_view(reinterpret_cast<const char*>(program.data()), program.size()));
  hash.add(part);
  hash.add(number);
  return hash.result();
}

}  // namespace gpupool::softgpu
