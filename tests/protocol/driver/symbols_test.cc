// Tests symbols.def against the CUDA toolkit of the build: additions of a newer toolkit fail here.
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "protocol/calls/errors.h"
#include "protocol/driver/version_map.h"
#include "tests/protocol/driver/elf_exports.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

namespace cuda = gpupool::cuda;

namespace {

std::string read(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Returns the words of a C text that start with `prefix`, each with the '(' that follows it, if any.
std::set<std::string> words(const std::string& text, const std::string& prefix) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::set<std::string> found;
  for (size_t at = 0; (at = text.find(prefix, at)) != std::string::npos;) {
    size_t end = at;
    while (end < text.size() && is_word(text[end])) ++end;
    if (at == 0 || !is_word(text[at - 1])) {
      const size_t next = text.find_first_not_of(" \n", end);
      found.insert(text.substr(at, end - at) + (next != std::string::npos && text[next] == '(' ? "(" : ""));
    }
    at = end;
  }
  return found;
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
  std::set<std::string> declared;
  for (const std::string& word : words(text, "cu")) {
    if (word.size() > 3 && std::isupper(static_cast<unsigned char>(word[2])) != 0 && word.ends_with('(')) {
      declared.insert(word.substr(0, word.size() - 1));
    }
  }
  REQUIRE(declared.size() > 500);  // cuda.h 11.8 has 508
  CHECK(missing_from_rows(declared) == std::set<std::string>{});
}

TEST_CASE("every export of the toolkit's stub library is a row of symbols.def") {
  const std::filesystem::path include(CUDA_INCLUDE_DIR);
  for (const char* place :
       {"../lib64/stubs/libcuda.so", "../lib/stubs/libcuda.so", "../lib/x86_64-linux-gnu/stubs/libcuda.so"}) {
    if (!std::filesystem::exists(include / place)) continue;
    auto exports = elf_exports(include / place);
    REQUIRE(exports.size() > 400);
    // Older stubs also export functions that are not in cuda.h: those of graphics APIs and the debugger's.
    std::erase_if(exports, [](const std::string& name) {
      for (const char* part : {"cuGL", "cuEGL", "cuVDPAU", "cuGraphicsGL", "cuGraphicsEGL", "cuGraphicsVDPAU",
                               "cuGraphicsResourceGetMappedEglFrame", "cudbg"}) {
        if (name.starts_with(part)) return true;
      }
      return false;
    });
    CHECK(missing_from_rows(exports) == std::set<std::string>{});
    return;
  }
  gpupool::testing::report_skip("no stub libcuda.so beside " + include.string() +
                                ": its exports are not compared");
}

TEST_CASE("the rows' versions are those of the PFN_ types") {
  std::map<std::string, std::set<int>> types;  // "cuMemAlloc" or "cuMemcpy_ptds" -> versions
  for (const char* file : {"cudaTypedefs.h", "cudaProfilerTypedefs.h"}) {
    const std::string text = read(std::string(CUDA_INCLUDE_DIR) + "/" + file);
    for (std::string word : words(text, "PFN_cu")) {
      // PFN_cuMemcpy_v7000_ptds: name, CUDA version, per-thread suffix. Aliases without a version are
      // skipped.
      std::string twin;
      if (word.back() == '(') word.pop_back();
      if (word.ends_with("_ptds") || word.ends_with("_ptsz")) {
        twin = word.substr(word.size() - 5);
        word.resize(word.size() - 5);
      }
      const size_t version = word.rfind("_v");
      if (version == std::string::npos || version + 2 == word.size()) continue;
      const std::string digits = word.substr(version + 2);
      if (digits.find_first_not_of("0123456789") != std::string::npos) continue;
      if (digits.size() < 4) continue;  // PFN_cuStreamBatchMemOp_v2 of CUDA 11.8 names a revision
      types[word.substr(4, version - 4) + twin].insert(std::stoi(digits));
    }
  }
  REQUIRE(types.size() > 400);
  for (const auto& [name, versions] : types) {
    const size_t twin = name.find("_pt");
    const std::string base = name.substr(0, twin);
    const std::string suffix = twin == std::string::npos ? "" : name.substr(twin);
    int revision = 0;
    for (int version : versions) {
      std::string symbol;  // the next revision with this suffix; only newer revisions have twins
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

TEST_CASE("an error is sticky if cuda.h says that nothing works after it") {
  std::string text = read(std::string(CUDA_INCLUDE_DIR) + "/cuda.h");
  size_t sticky = 0;
  for (size_t start = 0; (start = text.find("/**", start)) != std::string::npos;) {
    const size_t end = text.find("*/", start);
    std::string comment;  // in one line, without the '*' at the begin of each
    for (const char c : text.substr(start, end - start)) {
      const bool between = c == '*' || std::isspace(static_cast<unsigned char>(c));
      if (!between || !comment.ends_with(' ')) comment += between ? ' ' : c;
    }
    char name[81];
    int code = 0;
    const std::string behind = text.substr(end + 2, 80);
    start = end;
    if (std::sscanf(behind.c_str(), " CUDA_ERROR_%80[A-Za-z0-9_] = %d", name, &code) != 2) continue;
    const bool documented = comment.find("process must be terminated") != std::string::npos ||
                            comment.find("context cannot be used anymore") != std::string::npos;
    // Uncorrectable hardware errors: cuda.h does not say what follows, but the driver repeats them.
    const bool hardware =
        name == std::string("ECC_UNCORRECTABLE") || name == std::string("NVLINK_UNCORRECTABLE");
    INFO(name);
    CHECK(cuda::is_sticky(code) == (documented || hardware));
    sticky += documented;
  }
  CHECK(sticky >= 9);  // as in the oldest header that the build accepts
}
