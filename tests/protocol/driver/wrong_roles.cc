// Rows that must not compile, one for each number ROW, with the text of the error; row 0 must compile.
// wrong_roles.cmake compiles this file once per row.
#include "protocol/calls/codec.h"

using namespace gpupool::cuda;
using namespace gpupool::cuda::role;

struct Table {
  std::optional<void*> resolve(Kind, uint64_t);
  std::optional<CUstream> stream(uint64_t);
  void bind(Kind, uint64_t, void*);
  void unbind(uint64_t);
};
struct Memory {
  bool owns(uint64_t, uint64_t) const;
  bool in_range(uint64_t, uint64_t) const;
};
template <class Function, class... Roles>
constexpr auto kExecute = &Row<Function, Roles...>::template execute<Table, Memory>;

using Fill = CUresult (*)(CUdeviceptr, unsigned char, size_t, CUstream);
using Read = CUresult (*)(const CUdeviceptr*, size_t);
using Write = CUresult (*)(CUdeviceptr*);
using Signed = CUresult (*)(CUdeviceptr, int);

#if ROW == 0
[[maybe_unused]] const auto kRow = kExecute<Fill, device_range<2>, value, value, stream>;
#elif ROW == 1  // the role value does not check a CUdeviceptr
[[maybe_unused]] const auto kRow = kExecute<Fill, value, value, value, stream>;
#elif ROW == 2  // the roles in, in_or_null and in_out do not check a CUdeviceptr
[[maybe_unused]] const auto kRow = kExecute<Read, in, value>;
#elif ROW == 3  // the role in_array does not check a CUdeviceptr
[[maybe_unused]] const auto kRow = kExecute<Read, in_array<1>, value>;
#elif ROW == 4  // the roles in, in_or_null and in_out do not check a CUdeviceptr
[[maybe_unused]] const auto kRow = kExecute<Write, in_out>;
#elif ROW == 5  // the size of a device address's bytes is a parameter of type size_t
[[maybe_unused]] const auto kRow = kExecute<Signed, device_range<1>, value>;
#elif ROW == 6  // Parameter<gpupool::cuda::role::device_range<2
[[maybe_unused]] const auto kRow = kExecute<Fill, device_range<2>, value, device_range<2>, stream>;
#endif
