// Tests every form of isa/*.txt: ptxas, if installed, must assemble it; the JIT must compile it and the
// result must match, or refuse it with the message in the table. Also checks docs/softgpu-ptx.md, which is
// generated from the table.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>

#include "server/softgpu/exec/grid.h"
#include "server/softgpu/jit/program.h"
#include "server/softgpu/memory/address_space.h"
#include "tests/server/softgpu/jit/isa_table.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace gpupool::softgpu;

namespace {

constexpr uint32_t kLaneBytes = 256;  // of results

std::byte* device_bytes(uint64_t size) {
  REQUIRE(reserve_range());
  return reinterpret_cast<std::byte*>(allocate_host((size + 4095) / 4096 * 4096, 4096).value());
}

// Returns the error of the form; empty if there is none.
std::string try_form(const isa::Section& section, const isa::Form& form) {
  static auto executor = GridExecutor::create(1, nullptr);
  static std::byte* const memory = device_bytes(isa::kMemoryBytes);
  static std::byte* const results = device_bytes(32 * kLaneBytes);
  const std::string text = module_text(section, form.target, kernel_text(form, "k"));
  const std::string_view view = text;
  auto compiled = compile({&view, 1}, {.compute_capability = 130});
  if (auto* error = std::get_if<CompileError>(&compiled)) {
    if (form.refused.empty()) return "does not compile: " + error->message;
    if (error->message.find(form.refused) == std::string::npos)
      return "is refused with another message: " + error->message;
    const std::string opcode = form.code.substr(0, form.code.find_first_of(". "));
    if (error->message.find("line ") == std::string::npos || error->message.find(opcode) == std::string::npos)
      return "the message names no instruction or no line: " + error->message;
    return {};
  }
  if (!form.refused.empty()) return "is not refused";
  const auto program = std::get<std::shared_ptr<const Program>>(compiled);
  const KernelInfo& kernel = *program->find_kernel("k");
  auto code = program->code(kernel);
  if (auto* error = std::get_if<CompileError>(&code)) return "no machine code: " + error->message;
  if (form.compiles) return {};
  std::memset(memory, 0, isa::kMemoryBytes);
  std::memset(results, 0, 32 * kLaneBytes);
  for (const isa::Place& place : form.before)
    if (place.space[0] == 'g') std::memcpy(memory + place.index, &place.value.low, place.bytes());
  std::byte* data = device_bytes(program->data_bytes() + 1);
  program->write_data({data, program->data_bytes()}, reinterpret_cast<uint64_t>(data));
  GridRequest request;
  request.code = std::get<KernelCode>(code);
  request.kernel_name = "k";
  request.block_dim[0] = form.warp ? 32 : 1;
  request.static_shared_bytes = kernel.static_shared_bytes;
  request.module_data = reinterpret_cast<uint64_t>(data);
  request.params.resize(16);
  const std::byte* parameters[] = {results, memory};
  std::memcpy(request.params.data(), parameters, sizeof parameters);
  std::promise<GridResult> done;
  executor->submit(std::move(request), [&](GridResult result) { done.set_value(std::move(result)); });
  const GridResult result = done.get_future().get();
  free_host(reinterpret_cast<uint64_t>(data), (program->data_bytes() + 4096) / 4096 * 4096);
  if (form.faults) return result.fault == FaultKind::none ? "does not fault" : "";
  if (result.fault != FaultKind::none)
    return "ends with fault " + std::to_string(static_cast<uint32_t>(result.fault));
  std::string wrong;
  uint32_t slot = 0;
  for (const isa::Place& place : form.after) {
    uint64_t bits[2] = {};
    const std::byte* from = results + place.lane * kLaneBytes + isa::kSlotBytes * slot++;
    if (place.space[0] == 'g') from = memory + place.index;
    std::memcpy(bits, from, place.space[0] == 'g' ? place.bytes() : isa::kSlotBytes);
    if (isa::matches(place, bits[0], bits[1])) continue;
    std::stringstream line;
    line << place.text() << " is 0x" << std::hex << bits[0] << " instead of 0x" << place.value.low << "; ";
    wrong += line.str();
  }
  return wrong;
}

template <typename Visit>
void for_each_form(const isa::Section& section, Visit visit) {
  for (const isa::Instruction& instruction : section.instructions)
    for (const isa::Row& row : instruction.rows)
      for (const isa::Form& form : row.forms) visit(instruction, row, form);
}

std::string where(const isa::Section& section, const isa::Form& form) {
  return section.file + ".txt:" + std::to_string(form.line) + ": " + form.code;
}

// All sections, or those with a file name that begins with the environment variable ISA_ONLY.
std::vector<isa::Section> sections() {
  const char* only = std::getenv("ISA_ONLY");
  std::vector<isa::Section> all;
  for (const std::string& path : isa::section_files()) {
    all.push_back(isa::read_section(path));
    if (only && all.back().file.rfind(only, 0) != 0) all.pop_back();
  }
  REQUIRE(!all.empty());
  return all;
}

std::string escaped(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

// Text of the page for users of code without __syncwarp (docs/adr/0033).
constexpr char kWarps[] =
    "\n"
    "## Lanes of a warp\n"
    "\n"
    "Lanes of a warp do not run in lock step. Code that orders them with `__syncwarp`, votes or shuffles "
    "computes the same as on a GPU. Old code\n"
    "without `__syncwarp` does so only where an analysis of its PTX detects that lanes exchange data "
    "(docs/adr/0033). It does not detect\n"
    "the following, which **give wrong values without an error** unless a `__syncwarp` separates the "
    "accesses (`SOFTGPU_CONVERGED_WARPS=all` handles all but the\n"
    "sixth, and is slow):\n"
    "\n"
    "- exchange through shared memory at an index from memory (`s[table[t]]`) that is not `volatile`;\n"
    "- exchange through shared memory at a computed index (`s[t + d]`, `s[t ^ 8]`) or at the same index for "
    "all lanes, if it is not `volatile`, in a kernel that never synchronises;\n"
    "- exchange through global memory, `volatile` or not, except between elements of one array whose "
    "indices\n"
    "  differ by a constant less than 32 (`g[t]`, `g[t + 1]`);\n"
    "- exchange through local memory and through atomics;\n"
    "- exchange by generic addresses that are not `volatile`;\n"
    "- two stores to one address whose order matters;\n"
    "- exchange in a function with more than 512 accesses to shared memory.\n";

std::string page() {
  std::stringstream out;
  out << "# PTX on softgpu\n\n"
         "softgpu, the device without a GPU, compiles PTX (docs/adr/0007, 0027). This page is generated from "
         "the table of instruction forms in\n"
         "`tests/server/softgpu/jit/isa/`, and a test compares both (`UPDATE_PAGES=1 "
         "build/dev/tests/softgpu_jit_isa_test` writes the\n"
         "page). That test compiles and runs every form counted under \"run\" and checks its result. It "
         "compiles a form under \"compiled\"\n"
         "to machine code without running it: the form needs a texture, a surface or a tensor map, which "
         "other tests provide; differs\n"
         "from a form that is run only in shape, layout, type or state space; or has no result to check. "
         "NVIDIA's `ptxas`, where\n"
         "installed, must accept each form, except forms that only older versions accept. A module with a "
         "refused form fails to load\n"
         "with `CUDA_ERROR_INVALID_PTX`, and the log names the instruction, the kernel, the line and the "
         "reason. Forms that are not\n"
         "listed here are refused, too.\n";
  size_t run = 0, compiled = 0, old = 0, refused = 0, instructions = 0, never_run = 0;
  std::stringstream tables;
  for (const std::string& path : isa::section_files()) {
    const isa::Section section = isa::read_section(path);
    tables << "\n## " << section.title
           << "\n\n| Instruction | Forms run | Compiled | Refused |\n|---|---:|---:|---|\n";
    for (const isa::Instruction& instruction : section.instructions) {
      size_t run_here = 0, compiled_here = 0;
      std::string no;
      for (const isa::Row& row : instruction.rows) {
        if (row.refused.empty()) {
          for (const isa::Form& form : row.forms) {
            ++(form.compiles ? compiled_here : run_here);
            old += form.old;
          }
          continue;
        }
        ++refused;
        no += (no.empty() ? "" : "<br>") + ("`" + escaped(row.code) + "`: " + escaped(row.refused));
      }
      run += run_here;
      compiled += compiled_here;
      never_run += run_here == 0 && compiled_here != 0;
      ++instructions;
      tables << "| `" << instruction.name << "` | " << run_here << " | " << compiled_here << " | " << no
             << " |\n";
    }
  }
  out << "\n"
      << instructions << " instructions. Forms: " << run << " run, " << compiled << " compiled (all forms of "
      << never_run << " instructions), " << old << " of both unknown to today's ptxas, " << refused
      << " kinds refused.\n"
      << kWarps << tables.str();
  return out.str();
}

}  // namespace

TEST_CASE("each form gives the results of the table") {
  for (const isa::Section& section : sections())
    for_each_form(section, [&](const isa::Instruction&, const isa::Row&, const isa::Form& form) {
      const std::string wrong = try_form(section, form);
      INFO(where(section, form));
      CHECK(wrong == "");
    });
}

#ifdef PTXAS
TEST_CASE("each form is accepted by ptxas") {
  for (const isa::Section& section : sections()) {
    std::map<std::string, std::string> by_target;
    std::map<std::string, std::vector<std::string>> names;
    for_each_form(section, [&](const isa::Instruction&, const isa::Row&, const isa::Form& form) {
      if (form.old) return;
      std::string one = kernel_text(form, "k" + std::to_string(names[form.target].size()));
      std::replace(one.begin(), one.end(), '\n', ' ');
      by_target[form.target] += one + "\n";
      names[form.target].push_back(where(section, form));
    });
    for (const auto& [target, text] : by_target) {
      const std::string path =
          "/tmp/gpupool-isa-" + std::to_string(getpid()) + "-" + section.file + "-" + target;
      const std::string head = module_text(section, target, "");
      std::ofstream(path + ".ptx") << head << text;
      const std::string command = std::string(PTXAS) + " -O0 -w -arch=sm_" + target + " " + path +
                                  ".ptx -o /dev/null > " + path + ".log 2>&1";
      const int status = std::system(command.c_str());
      std::ifstream log(path + ".log");
      const auto head_lines = std::count(head.begin(), head.end(), '\n');
      std::set<std::string> seen;
      for (std::string line; std::getline(log, line);) {
        const size_t at = line.find(", line ");
        std::string form;
        if (at != std::string::npos) {
          const auto index =
              static_cast<size_t>(std::stoul(line.substr(at + 7)) - static_cast<size_t>(head_lines) - 1);
          if (index < names[target].size()) form = names[target][index];
        }
        if (seen.insert(form).second) UNSCOPED_INFO(form << "  " << line);
      }
      CHECK(status == 0);
      unlink((path + ".ptx").c_str());
      unlink((path + ".log").c_str());
    }
  }
}
#else
TEST_CASE("each form is accepted by ptxas") {
  gpupool::testing::report_skip("needs ptxas of CUDA 13.0 or newer");
}
#endif

TEST_CASE("the page matches the table") {
  if (std::getenv("UPDATE_PAGES")) std::ofstream(ISA_PAGE) << page();
  std::ifstream file(ISA_PAGE);
  std::stringstream content;
  content << file.rdbuf();
  const bool same = content.str() == page();
  INFO("run this program with UPDATE_PAGES=1");
  CHECK(same);
}
