#include <cmath>
#include <cstdint>
#include <string>

#include "tests/server/softgpu/exec/run_grid.h"

using namespace softgpu_test;

namespace {

struct PrintfParams {
  uint64_t format, arguments;
  int32_t* returned;
};

void printf_kernel(ThreadContext* t) {
  auto& p = params<PrintfParams>(t);
  const int32_t returned = softgpu_vprintf(t, p.format, p.arguments);
  if (p.returned != nullptr) *p.returned = returned;
}

// Packs arguments as nvcc does: each aligned to its size.
class Packed {
 public:
  Packed() : memory_(1 << 16) {}
  template <typename T>
  Packed& add(T value) {
    at_ = (at_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    std::memcpy(memory_.data() + at_, &value, sizeof(T));
    at_ += sizeof(T);
    return *this;
  }
  uint64_t string(const char* text) {
    end_ -= std::strlen(text) + 1;
    std::strcpy(memory_.data() + end_, text);
    return memory_.address() + end_;
  }
  uint64_t address() const { return memory_.address(); }

 private:
  Buffer<char> memory_;
  size_t at_ = 0, end_ = 1 << 16;
};

struct Printed {
  std::string text;
  int32_t returned;
  FaultKind fault;
};

Printed print(Packed& packed, const char* format) {
  Buffer<int32_t> returned(1);
  take_printf_output();
  const GridResult result =
      run(printf_kernel, 1, 1, PrintfParams{packed.string(format), packed.address(), returned.data()});
  return {take_printf_output(), returned[0], result.fault};
}

template <typename... T>
std::string text_of(const char* format, T... arguments) {
  Packed packed;
  (packed.add(arguments), ...);
  return print(packed, format).text;
}

}  // namespace

TEST_CASE("printf formats as C does") {
  CHECK(text_of("plain\n") == "plain\n");
  CHECK(text_of("100%%") == "100%");
  CHECK(text_of("%d %i %u %x %X %o", -5, 7, 4000000000u, 255, 255, 8) == "-5 7 4000000000 ff FF 10");
  CHECK(text_of("%5d|%-5d|%05d|%+d|% d|%.3d|%#x", 42, 42, 42, 42, 42, 7, 255) ==
        "   42|42   |00042|+42| 42|007|0xff");
  CHECK(text_of("%hd %hhu %c", 70000, 257, 'A') == "4464 1 A");
  CHECK(text_of("%d %lld %d", 1, int64_t{-1234567890123}, 2) == "1 -1234567890123 2");
  CHECK(text_of("%d %ld %zu %llx %jd %td", 1, int64_t{2}, uint64_t{3}, UINT64_MAX, int64_t{4}, int64_t{5}) ==
        "1 2 3 ffffffffffffffff 4 5");
  CHECK(text_of("%f %.2f %e %g %10.3f|%-10.1f|", 1.5, 2.345678, 12345.678, 0.0001, 3.14159, 2.5) ==
        "1.500000 2.35 1.234568e+04 0.0001      3.142|2.5       |");
  CHECK(text_of("%d %f %d", 1, 2.0, 3) == "1 2.000000 3");
  CHECK(text_of("%f %F %a %A", double{INFINITY}, double{NAN}, 1.0, 0.5) == "inf NAN 0x1p+0 0X1P-1");
  CHECK(text_of("%*d|%-*d|%.*f|%*d", 6, 42, 6, 42, 2, 3.14159, -6, 42) == "    42|42    |3.14|42    ");
  CHECK(text_of("%p %p", uint64_t{0xdeadbeef}, uint64_t{0}) == "0xdeadbeef (nil)");
}

TEST_CASE("printf reads strings from device memory") {
  Packed packed;
  packed.add(packed.string("hello")).add(packed.string("world")).add(packed.string("abc")).add(uint64_t{0});
  packed.add(packed.string("xyz"));
  CHECK(print(packed, "%s, %8s|%-5s|%s|%.2s").text == "hello,    world|abc  |(null)|xy");

  const std::string longer(20000, 'x');
  Packed large;
  large.add(large.string(longer.c_str()));
  CHECK(print(large, "<%s>").text == "<" + longer + ">");

  // A string that ends exactly at the end of its mapping.
  const auto address = *allocate_host(4096, 4096);
  const auto guard = *allocate_addresses(4096, 1, address + 4096);
  std::memcpy(reinterpret_cast<char*>(address) + 4090, "edge!", 6);
  Packed edge;
  edge.add(address + 4090);
  CHECK(print(edge, "%s").text == "edge!");
  free_addresses(guard, 4096);
  free_host(address, 4096);
}

TEST_CASE("printf returns the number of arguments") {
  Packed packed;
  packed.add(1).add(2).add(3.0);
  CHECK(print(packed, "%d %d %f").returned == 3);
  CHECK(print(packed, "none").returned == 0);
  Buffer<int32_t> returned(1);
  REQUIRE(run(printf_kernel, 1, 1, PrintfParams{0, 0, returned.data()}).fault == FaultKind::none);
  CHECK(returned[0] == -1);
}

TEST_CASE("hostile formats do no harm") {
  CHECK(text_of("%n|%d", 5) == "%n|5");
  CHECK(text_of("%", 5) == "%");
  CHECK(text_of("%5", 5) == "%5");
  CHECK(text_of("%-+ #0'-+ #0'lllllllld", int64_t{5}).size() >= 2);
  CHECK(text_of("%y %k", 5) == "%y %k");
  CHECK(text_of("%99999999999999999999d", 5).size() == 4096);
  CHECK(text_of("%.99999999999999999999f", 1.0).size() == 4096 + 2);
  CHECK(text_of("%*d", INT32_MAX, 5).size() == 4096);
  CHECK(text_of("%*d", INT32_MIN, 5).size() == 4096);
  CHECK(text_of("%.*d", INT32_MIN, 5) == "5");
  CHECK(text_of("%f", 1.7976931348623157e308).size() == 316);

  std::string many, expected;
  Packed packed;
  for (int i = 0; i < 40; ++i) {
    many += "%d,";
    expected += i < 32 ? std::to_string(i) + "," : "%d,";
    packed.add(i);
  }
  CHECK(print(packed, many.c_str()).text == expected);

  std::string flood;
  Packed empty;
  for (int i = 0; i < 30; ++i) flood += "%4096d";
  CHECK(print(empty, flood.c_str()).text.size() <= 64 << 10);
}

TEST_CASE("printf faults with illegal address if its format or arguments are unreadable") {
  Packed packed;
  packed.add(uint64_t{8});
  CHECK(print(packed, "%s").fault == FaultKind::illegal_address);
  CHECK(run(printf_kernel, 1, 1, PrintfParams{16, packed.address(), nullptr}).fault ==
        FaultKind::illegal_address);
  CHECK(run(printf_kernel, 1, 1, PrintfParams{packed.string("%d"), 16, nullptr}).fault ==
        FaultKind::illegal_address);
  const auto hole = *allocate_addresses(4096, 1, 0);
  const GridResult result = run(printf_kernel, 1, 1, PrintfParams{packed.string("%d"), hole, nullptr});
  CHECK(result.fault == FaultKind::illegal_address);
  CHECK(result.address == hole);
  free_addresses(hole, 4096);
}

TEST_CASE("a full printf buffer drops the oldest output") {
  take_printf_output();
  CHECK(printf_fifo_bytes() == 1 << 20);
  set_printf_fifo_bytes(1000);
  Packed packed;
  packed.add(7);
  const uint64_t format = packed.string("%09d\n");
  const uint64_t last = packed.string("the last\n");
  REQUIRE(run(printf_kernel, 500, 1, PrintfParams{format, packed.address(), nullptr}).fault ==
          FaultKind::none);
  REQUIRE(run(printf_kernel, 1, 1, PrintfParams{last, packed.address(), nullptr}).fault == FaultKind::none);
  const std::string text = take_printf_output();
  CHECK(text.size() <= 1000);
  CHECK(text.size() > 900);
  CHECK(text.substr(text.size() - 9) == "the last\n");
  set_printf_fifo_bytes(1 << 20);
}

TEST_CASE("printf lines of concurrent threads are neither mixed nor lost") {
  take_printf_output();
  Packed packed;
  packed.add(1).add(2.5).add(packed.string("abc"));
  const uint64_t format = packed.string("%d %.1f %s\n");
  REQUIRE(run(printf_kernel, 100, 32, PrintfParams{format, packed.address(), nullptr}).fault ==
          FaultKind::none);
  std::string expected;
  for (int i = 0; i < 3200; ++i) expected += "1 2.5 abc\n";
  CHECK(take_printf_output() == expected);
}
