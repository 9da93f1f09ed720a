#include "protocol/images/variables.h"

#include <algorithm>
#include <string>

#include "protocol/images/linked_cubin.h"
#include "tests/protocol/images/images.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

namespace cuda = gpupool::cuda;
namespace format = images::format;

namespace {

const std::string kHead = ".version 8.0\n.target sm_80\n.address_size 64\n";

std::string listed(const cuda::ModuleVariables& found) {
  std::string list;
  for (const auto& [name, variable] : found.by_name) {
    list += (list.empty() ? "" : " ") + name + (variable.constant ? "/constant" : "") +
            (variable.managed ? "/managed" : "") + (variable.repeated ? "/repeated" : "");
  }
  return list + (found.uses_heap ? "; heap" : "");
}

std::string of_code(cuda::CodeKind kind, cuda::ByteSpan code) {
  cuda::ModuleVariables found;
  const CUresult result = cuda::variables_of_code(kind, code, found);
  return result == CUDA_SUCCESS ? listed(found) : "error " + std::to_string(result);
}

std::string of_ptx(const std::string& text) {
  const std::string ptx = kHead + text;
  return of_code(cuda::CodeKind::ptx, std::as_bytes(std::span(ptx)));
}
const std::string kInvalidPtx = "error " + std::to_string(CUDA_ERROR_INVALID_PTX);
const std::string kInvalidImage = "error " + std::to_string(CUDA_ERROR_INVALID_IMAGE);

std::string of_bundle(const std::vector<images::Buffer>& files, cuda::CodeTarget target = {8, 0, false}) {
  cuda::ImageSpans spans{files.at(0), {}};
  for (size_t i = 1; i < files.size(); ++i) spans.linked.emplace_back(files[i]);
  cuda::Bytes bytes;
  REQUIRE(cuda::bundle(spans, bytes) == CUDA_SUCCESS);
  cuda::ModuleVariables found;
  const CUresult result = cuda::variables_of_bundle(bytes.view(), target, found);
  return result == CUDA_SUCCESS ? listed(found) : "error " + std::to_string(result);
}

images::Buffer with_nul(const std::string& text) {
  return images::to_buffer(text + '\0');
}

// Every truncation must be read without an overread, which a sanitizer detects because each has its own
// allocation, and find nothing that the whole does not have.
void check_truncations(cuda::CodeKind kind, cuda::ByteSpan whole) {
  cuda::ModuleVariables all;
  REQUIRE(cuda::variables_of_code(kind, whole, all) == CUDA_SUCCESS);
  for (size_t size = 0; size < whole.size(); ++size) {
    const images::Buffer part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    cuda::ModuleVariables found;
    if (cuda::variables_of_code(kind, part, found) != CUDA_SUCCESS) continue;
    CHECK(
        std::ranges::all_of(found.by_name, [&](const auto& one) { return all.by_name.contains(one.first); }));
  }
}

// The variables of the file variables.cu as a device finds them in the compiled image.
std::string expected(const cuda::ModuleVariables& found, const std::string& more) {
  std::vector<std::string> names{"$str",
                                 "_ZZ12first_kernelE5steps",
                                 "_ZZ12first_kernelE7weights/constant",
                                 "_ZZ5countiE5calls",
                                 "aligned",
                                 "factors/constant",
                                 "managed/managed",
                                 "plain",
                                 "self",
                                 "table"};
  // Internal names contain a number that depends on the file's path.
  for (const auto& [name, variable] : found.by_name) {
    if (name.ends_with("hidden") || name.ends_with("namelessE")) names.push_back(name);
    if (name.ends_with("hidden_factor")) names.push_back(name + "/constant");
  }
  std::ranges::sort(names);
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : " ") + name;
  return list + more;
}

cuda::ModuleVariables of_compiled(const std::string& name) {
  INFO(name);
  const images::Buffer code = images::compiled(name);
  cuda::ModuleVariables found;
  REQUIRE(cuda::variables_of_code(name.ends_with(".ptx") ? cuda::CodeKind::ptx : cuda::CodeKind::elf, code,
                                  found) == CUDA_SUCCESS);
  return found;
}

}  // namespace

TEST_CASE("lists the variables that PTX declares") {
  CHECK(of_ptx("").empty());
  CHECK(of_ptx(".global .u32 a;\n.const .f64 b;") == "a b/constant");
  CHECK(of_ptx(".visible .global .align 16 .f64 a[3][5];") == "a");
  CHECK(of_ptx(".global .align 1 .b8 $str$1[4] = {37, 100, 10};\n.global .u8 %x, _y, z9;") ==
        "$str$1 %x _y z9");
  CHECK(of_ptx(".weak .global .u32 w = 5;.common .global .u32 c;.visible .const .u32 v[] = {1, 2};") ==
        "c v/constant w");
  CHECK(of_ptx(".global .v4 .f32 v[2];.global .u16 a[0x10], b[010] = {1, 2}, c = 3, d;") == "a b c d v");
  CHECK(of_ptx(".global .attribute(.managed) .align 4 .b8 m[12] = {1, 2, 3};.global .u32 a;") ==
        "a m/managed");
  CHECK(of_ptx(".global .attribute(.unified(19, 95)) .u32 u;") == "u");
  CHECK(of_ptx(".global .u64 a = generic(b)+4, c[2] = {0xff(b), -1}, d = b;.global .u32 b;") == "a b c d");
  CHECK(of_ptx("// .global .b8 no;\n/* .global .b8 no; */ .file 1 \".global .b8 no;\"\n.global .u8 a;") ==
        "a");
  CHECK(of_ptx(std::string(".global .u8 a;\0.global .u8 b;", 28)) == "a");
}

TEST_CASE("does not list what is no variable of the module in PTX") {
  CHECK(of_ptx(".extern .global .u32 a[];\n.extern .const .u32 b, c;\n.global .u32 own;") == "own");
  CHECK(of_ptx(".extern .shared .align 16 .b8 dynamic[];\n.shared .u32 s;\n.global .u32 own;") == "own");
  CHECK(of_ptx(".extern .func (.param .b32 r) f (.param .b64 p);\n.global .u32 own;") == "own");
  CHECK(of_ptx(".global .texref t;.global .surfref s;.global .samplerref p = {x = 1};.global .u32 own;") ==
        "own");
  CHECK(of_ptx(".entry k(.param .u64 .ptr .global .align 4 p, .param .u64 .ptr .const q) { ret; }").empty());
  CHECK(
      of_ptx(
          ".func (.param .b32 r) f (.param .b64 p) { .param .b32 a; .reg .u32 b; .local .u8 c[4];\n"
          ".shared .u8 d; L: ld.global.u32 b, [p]; @q st.global.u32 [p], b; cvta.to.global.u64 b, b; ret; }")
          .empty());
  CHECK(of_ptx(".section .debug_str { .b8 46, 103 }\n.section .debug_info { .b64 a+4 }").empty());
}

TEST_CASE("lists the variables that PTX declares inside functions") {
  CHECK(of_ptx(".entry k() { .reg .u32 r; .global .u32 a; { .const .u32 b = 4; } mov.u32 r, 1; .global .u8 "
               "c; }") == "a b/constant c");
  CHECK(of_ptx(".func f() { L: .global .u32 a; ret; }\n.global .u32 b;") == "a b");
  CHECK(of_ptx(".func f() {\n.loc 1 20 3\n.global .u32 a;\n.loc 1 21 3, function_name $L, inlined_at 1 2 3\n"
               "ld.global.u32 r, [x];\n.loc 1 22 3\nst.global.u32 [x], r; }") == "a");
}

TEST_CASE("marks names that a driver cannot find a variable by") {
  CHECK(of_ptx(".func f() { .global .u32 a; }\n.func g() { .global .u32 a; }") == "a/repeated");
  CHECK(of_ptx(".visible .global .u32 a;\n.func g() { .global .u32 a; }") == "a/repeated");
  const std::vector<std::string> files{
      kHead + ".weak .global .u32 w;.common .global .u32 c;.global .u8 $str[2];",
      kHead + ".weak .global .u32 w;.visible .global .u32 c;.global .u8 $str[2];"};
  const auto linked = [](const std::vector<std::string>& texts) {
    const std::string cubin = cuda::make_linked_cubin(texts, 80);
    return of_code(cuda::CodeKind::elf, std::as_bytes(std::span(cubin)));
  };
  CHECK(linked(files) == "$str c w");
  CHECK(linked({kHead + ".global .u32 a;", kHead + ".global .u32 a;"}) == "a/repeated");
  CHECK(linked({kHead + ".global .u32 a;", kHead + ".visible .global .u32 a;"}) == "a/repeated");
  CHECK(linked({kHead + ".extern .global .u32 a;", kHead + ".visible .global .u32 a;"}) == "a");
}

TEST_CASE("refuses PTX whose declarations are broken") {
  for (const char* text :
       {".global", ".global .u32", ".global .u32 a", ".global .u32 a[", ".global .u32 a = {1, 2",
        ".global .u32 ;", ".global .u32 a, ;", ".global .u32 a b;", ".global .u32 a .u32 b;",
        ".global .u32 a];", ".global .u32 a<10>;", ".const .u32 a\n.entry k() { ret; }"}) {
    INFO(text);
    CHECK(of_ptx(text) == kInvalidPtx);
  }
  CHECK(of_ptx("}}}))) .global .b8 x[3];") == "x");
}

TEST_CASE("recognises code that uses the device heap") {
  const std::string malloc = ".extern .func (.param .b64 r) malloc (.param .b64 malloc_param_0);\n";
  CHECK(of_ptx(malloc + ".entry k() { ret; }").empty());
  CHECK(of_ptx(malloc + ".entry k() { call.uni (r), malloc, (p); ret; }") == "; heap");
  CHECK(of_ptx(".entry k() { call.uni free, (p); ret; }") == "; heap");
  CHECK(of_ptx(".entry k() { mov.u64 %rd1, malloc; ret; }") == "; heap");
  CHECK(of_ptx(".global .u64 table[2] = {free, 0};") == "table; heap");
  CHECK(of_ptx(".entry k() { call.uni (r), __cuda_syscall_aligned_malloc, (p); ret; }") == "; heap");
  CHECK(of_ptx(".entry k() { call.uni (r), __cudaCDP2Malloc, (p, q); ret; }") == "; heap");
  CHECK(
      of_ptx(".entry k(.param .u64 free_param) { call.uni (r), my_malloc, (p); // malloc\n ret; }").empty());
}

TEST_CASE("limits the variables and their names") {
  std::string many = kHead + ".global .u8 a0";
  for (size_t i = 1; i < cuda::kMaxModuleVariables; ++i) many += ",a" + std::to_string(i);
  cuda::ModuleVariables found;
  const auto read = [&](const std::string& ptx) {
    return cuda::variables_of_code(cuda::CodeKind::ptx, std::as_bytes(std::span(ptx)), found);
  };
  CHECK(read(many + ";") == CUDA_SUCCESS);
  CHECK(found.by_name.size() == cuda::kMaxModuleVariables);
  CHECK(read(many + ",b;") == CUDA_ERROR_INVALID_PTX);
  const std::string half(cuda::kMaxVariableNameBytes / 2 - 1, 'x');
  CHECK(read(".global .u8 " + half + ", " + half.substr(1) + ";") == CUDA_SUCCESS);
  CHECK(read(".global .u8 " + half + ", " + half + "y;") == CUDA_ERROR_INVALID_PTX);
}

TEST_CASE("reads the code that the device loads from a bundle") {
  const std::string old = kHead + ".global .u32 old;", fresh = kHead + ".global .u32 fresh;";
  const images::Part parts[] = {{.arch = 70, .flags = format::kFlagLz4, .content = old},
                                {.arch = 80, .flags = format::kFlagZstd, .content = fresh}};
  const images::Buffer fat = images::container({parts[0], parts[1]});
  CHECK(of_bundle({fat}, {7, 5, false}) == "old");
  CHECK(of_bundle({fat}) == "fresh");
  CHECK(of_bundle({fat}, {6, 0, false}) == "error " + std::to_string(CUDA_ERROR_NO_BINARY_FOR_GPU));
  CHECK(of_bundle({with_nul(fresh)}, {6, 0, false}) == "fresh");  // bare PTX: a driver has no choice
  // The files of a program compiled with -rdc, without machine code for the device.
  CHECK(of_bundle({images::container({}), images::container({parts[0]}), images::container({parts[1]})}) ==
        "fresh old");
  const images::Buffer linked = images::to_buffer(cuda::make_linked_cubin(std::vector{old, fresh}, 80));
  CHECK(of_bundle({linked}) == "fresh old");
  CHECK(of_bundle({linked}, {8, 0, true}) == "fresh old");

  cuda::ModuleVariables found;
  CHECK(cuda::variables_of_bundle(fat, {8, 0, false}, found) == CUDA_ERROR_INVALID_IMAGE);  // in no bundle
  images::Part lying = parts[1];
  lying.content = "not PTX, but of 20 b";
  lying.flags = 0;
  lying.kind = format::kKindElf;
  CHECK(of_bundle({images::container({lying})}) == kInvalidImage);
}

TEST_CASE("finds the variables of nvcc's images, in machine code and PTX") {
  if (!images::have_compiled())
    return gpupool::testing::report_skip("built without nvcc, so there are no compiled images");
  for (const char* name : {"variables.cubin", "variables.ptx", "heap.cubin", "heap.ptx", "first.ptx"}) {
    const cuda::ModuleVariables found = of_compiled(name);
    CHECK(found.by_name.size() == 13);
    CHECK(listed(found) == expected(found, std::string(name).starts_with("heap") ? "; heap" : ""));
  }
  const images::Buffer fat = images::compiled("variables.fatbin");
  CHECK(of_bundle({fat}, {8, 0, false}) == listed(of_compiled("variables.cubin")));
  CHECK(of_bundle({fat}, {9, 0, false}) == listed(of_compiled("variables.ptx")));
  CHECK(of_bundle({fat}, {8, 0, true}) == listed(of_compiled("variables.ptx")));
}

TEST_CASE("finds the variables of linked files of nvcc") {
  if (!images::have_compiled())
    return gpupool::testing::report_skip("built without nvcc, so there are no compiled images");
  const images::Buffer cubin = images::compiled("linked.cubin");
  if (cubin.empty()) return gpupool::testing::report_skip("this nvcc does not write the linked cubin");
  const cuda::ModuleVariables all = of_compiled("linked.cubin");
  cuda::ModuleVariables files = of_compiled("first.ptx");
  const cuda::ModuleVariables second = of_compiled("second.ptx");
  CHECK_FALSE(second.by_name.contains("plain"));  // .extern
  CHECK(second.by_name.contains("$str"));
  files.by_name.insert(second.by_name.begin(), second.by_name.end());
  CHECK(files.by_name.size() == 16);
  CHECK(all.by_name.size() == 16);
  CHECK(all.by_name.contains("_ZZ13second_kernelE5steps"));
  CHECK(std::ranges::none_of(all.by_name, [](const auto& one) { return one.second.repeated; }));
  // The file as it was before linking, which a driver can link, too.
  const images::Buffer object = images::compiled("relocatable.cubin");
  CHECK(of_code(cuda::CodeKind::elf, object) == listed(of_compiled("first.ptx")));
}

TEST_CASE("survives truncated and damaged code when listing variables") {
  const std::string ptx = kHead +
                          ".visible .global .align 4 .u32 a, b[3] = {1, 2};.const .u32 c;\n"
                          ".entry k() { .global .u32 d; call free, (p); }\n";
  check_truncations(cuda::CodeKind::ptx, std::as_bytes(std::span(ptx)));
  const std::string linked = cuda::make_linked_cubin(std::vector{ptx, kHead}, 80);
  for (size_t size = 0; size < linked.size(); ++size) {
    const images::Buffer part = images::to_buffer(linked.substr(0, size));
    CHECK(of_code(cuda::CodeKind::elf, part) == kInvalidImage);
  }
  const std::string noise(300, '\x7f');
  CHECK(of_code(cuda::CodeKind::elf, std::as_bytes(std::span(noise))) == kInvalidImage);
  CHECK(of_code(cuda::CodeKind::elf, {}) == kInvalidImage);
  CHECK(of_code(cuda::CodeKind::other, std::as_bytes(std::span(noise))) == kInvalidImage);
  CHECK(of_code(cuda::CodeKind::ptx, std::as_bytes(std::span(noise))).empty());
  if (!images::have_compiled())
    return gpupool::testing::report_skip("built without nvcc, so there are no compiled images");
  const images::Buffer cubin = images::compiled("heap.cubin");
  for (size_t size = 0; size < cubin.size(); ++size) {
    const images::Buffer part(cubin.begin(), cubin.begin() + static_cast<ptrdiff_t>(size));
    (void)of_code(cuda::CodeKind::elf, part);
  }
  for (size_t at = 0; at < cubin.size(); ++at) {
    images::Buffer wrong = cubin;
    wrong[at] = ~wrong[at];
    (void)of_code(cuda::CodeKind::elf, wrong);
  }
}
