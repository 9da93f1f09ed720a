// symbols.def against the toolkit that the tree is built with: a newer toolkit's additions fail here.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "protocol/cuda/version_map.h"
#include "tests/protocol/cuda/elf_exports.h"
#include "tests/support/catch.h"

namespace cuda = gpupool::cuda;

namespace {

std::string read(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::set<std::string> missing_from_rows(const std::set<std::string>& names) {
  std::set<std::string> missing;
  for (const std::string& name : names) {
    if (cuda::symbol_by_name(name) == cuda::symbol_count()) missing.insert(name);
  }
  return missing;
}

}  // namespace

TEST_CASE("every function that cuda.h declares is a row of symbols.def") {
  const std::string text = read(PREPROCESSED_CUDA_H);
  const std::regex declaration(R"(\b(cu[A-Z]\w*)\s*\()");
  std::set<std::string> declared;
  for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it)
    declared.insert((*it)[1]);
  REQUIRE(declared.size() > 500);  // cuda.h 11.8 has 508
  CHECK(missing_from_rows(declared) == std::set<std::string>{});
}

TEST_CASE("every export of the toolkit's stub library is a row of symbols.def") {
  const std::filesystem::path include(CUDA_INCLUDE_DIR);
  for (const char* place :
       {"../lib64/stubs/libcuda.so", "../lib/stubs/libcuda.so", "../lib/x86_64-linux-gnu/stubs/libcuda.so"}) {
    if (!std::filesystem::exists(include / place)) continue;
    const auto exports = elf_exports(include / place);
    REQUIRE(exports.size() > 400);
    CHECK(missing_from_rows(exports) == std::set<std::string>{});
    return;
  }
  WARN("no stub libcuda.so beside " << include << "; only cuda.h was compared");
}

TEST_CASE("the rows' versions are those of the PFN_ types") {
  std::map<std::string, std::set<int>> types;  // "cuMemAlloc" or "cuMemcpy_ptds" -> versions
  for (const char* file : {"cudaTypedefs.h", "cudaProfilerTypedefs.h"}) {
    const std::string text = read(std::string(CUDA_INCLUDE_DIR) + "/" + file);
    const std::regex type(R"(PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\))");
    for (std::sregex_iterator it(text.begin(), text.end(), type), end; it != end; ++it) {
      types[(*it)[1].str() + (*it)[3].str()].insert(std::stoi((*it)[2]));
    }
  }
  REQUIRE(types.size() > 400);
  for (const auto& [name, versions] : types) {
    const size_t twin = name.find("_pt");
    const std::string base = name.substr(0, twin);
    const std::string suffix = twin == std::string::npos ? "" : name.substr(twin);
    int revision = 0;
    for (int version : versions) {
      std::string symbol;  // the next revision that has this suffix: twins exist of newer revisions only
      do {
        ++revision;
        symbol = base + (revision == 1 ? "" : "_v" + std::to_string(revision)) + suffix;
      } while (revision < 9 && cuda::symbol_by_name(symbol) == cuda::symbol_count());
      const auto match = cuda::find_symbol(
          base, version, suffix.empty() ? cuda::kDefaultStream : cuda::kPerThreadDefaultStream);
      INFO(name << " at " << version);
      REQUIRE(match.status == cuda::SymbolStatus::found);
      CHECK(cuda::symbol_name(match.symbol) == symbol);
    }
  }
}
