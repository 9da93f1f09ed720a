// Reads the table of PTX instruction forms in isa/*.txt: one form, or a family of forms, per line. For
// isa_test.cc.
//
//   # Integer arithmetic              a section
//   ## add                            an instruction of the ISA; the following rows belong to it
//   target 90a                        ptxas target of the section's following rows
//   module .global .u32 word;         text before the kernels of the section
//   add.<s32,u32> %r0, %r1, %r2 :: r1=7 r2=-8 -> r0=-1
//   shfl.sync.idx.b32 %r0, %r1, 3, 31, -1 :: warp r1=lane -> r0@5=3
//   multimem.st.global.u32 [%g], %r1 :: refused multicast
//
// <a,b> stands for each of its words; groups that begin with the same number, <1:a,b> ... <1:c,d>, are
// replaced in step. Registers: %p0-7 (.pred), %b0-3 (.b8), %h0-7 (.b16), %r0-31, %x0-31, %q0-3 (.b128); %g is
// the address of 4096 bytes of global memory, %s and %sx the address of 4096 bytes of shared memory in 32 and
// 64 bits, %l that of 64 bytes of local memory, %lane the lane. After `::` come the contents of registers and
// memory (g+OFFSET, s+OFFSET: words; gx, gh, gb: 8, 2 and 1 byte) before the form, and after `->` the
// required contents after it, in lane 0 or in @lane. Values: integers, 1.5f 1.5d 1.5h 1.5b (f32 f64 f16
// bf16), nanf nand nanh nanb, ~1.5f (approximately), low:high for %q. `warp`: run by 32 threads instead of
// one. `compiles`: not run. `faults`: the grid ends with a fault. `refused TEXT`: compiling fails with a
// message that contains TEXT. `old`: ptxas no longer accepts the form.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace isa {

struct Value {
  enum class Kind { bits, nan, near, lane } kind = Kind::bits;
  char type = 0;  // of nan and near: f d h b
  uint64_t low = 0, high = 0;
  double number = 0;
};

struct Place {
  std::string space;  // p b h r x q: a register; g s: words of memory; gx gh gb sx sh sb
  uint32_t index = 0, lane = 0;
  Value value;
  bool is_memory() const { return space[0] == 'g' || space[0] == 's'; }
  uint32_t bytes() const;
  std::string text() const;
};

struct Form {
  std::string code, target;
  int line = 0;
  std::vector<Place> before, after;
  bool warp = false, compiles = false, faults = false, old = false;
  std::string refused;  // text that the error message must contain
};

struct Row {
  std::string code, refused;  // as in the file
  std::vector<Form> forms;
};

struct Instruction {
  std::string name;
  std::vector<Row> rows;
};

struct Section {
  std::string file, title, module;
  std::vector<Instruction> instructions;
};

Section read_section(const std::string& path);  // throws std::runtime_error with file and line
std::vector<std::string> section_files();       // sorted paths

// Returns a kernel `name` that runs the form. Its parameters are the addresses of the results (8 bytes for
// each element of `after`, per lane) and of the global memory.
std::string kernel_text(const Form& form, const std::string& name);
std::string module_text(const Section& section, const std::string& target, const std::string& kernels);

bool matches(const Place& expected, uint64_t low, uint64_t high);
constexpr uint32_t kMemoryBytes = 4096, kSlotBytes = 16;

}  // namespace isa
