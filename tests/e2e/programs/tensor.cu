// Matrix products on tensor cores (wmma types; mma with ldmatrix and asynchronous copies), and arithmetic
// with the low-precision types.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>
#include <mma.h>

#include "check.h"

namespace {

using namespace nvcuda;

// Small integers, which every format represents exactly.
template <typename T>
std::vector<T> small_numbers(size_t count, uint32_t seed, int from, int to) {
  Random random(seed);
  std::vector<T> values(count);
  for (T& value : values)
    value = static_cast<T>(
        static_cast<float>(from + static_cast<int>(random.below(static_cast<uint32_t>(to - from + 1)))));
  return values;
}
template <typename T>
float to_float(T value) {
  return static_cast<float>(value);
}

constexpr int kM = 64, kN = 48, kK = 32;

template <typename T, typename D>
bool is_product(const std::vector<T>& a, const std::vector<T>& b, const std::vector<D>& d, bool b_by_column) {
  for (int row = 0; row < kM; ++row)
    for (int column = 0; column < kN; ++column) {
      float sum = 0;
      for (int k = 0; k < kK; ++k)
        sum += to_float(a[static_cast<size_t>(row * kK + k)]) *
               to_float(b[static_cast<size_t>(b_by_column ? column * kK + k : k * kN + column)]);
      if (to_float(d[static_cast<size_t>(row * kN + column)]) != sum) return false;
    }
  return true;
}

// One warp per tile.
template <int M, int N, int K, typename T, typename Fragment, typename D, typename Layout>
__global__ void wmma_product(const T* a, const T* b, D* d) {
  wmma::fragment<wmma::matrix_a, M, N, K, Fragment, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, M, N, K, Fragment, Layout> fb;
  wmma::fragment<wmma::accumulator, M, N, K, D> fd;
  wmma::fill_fragment(fd, D(0));
  const int row = blockIdx.y * M, column = blockIdx.x * N;
  const bool by_column = std::is_same<Layout, wmma::col_major>::value;
  for (int k = 0; k < kK; k += K) {
    wmma::load_matrix_sync(fa, a + row * kK + k, kK);
    wmma::load_matrix_sync(fb, by_column ? b + column * kK + k : b + k * kN + column, by_column ? kK : kN);
    if constexpr (std::is_same<Fragment, wmma::precision::tf32>::value) {
      for (int i = 0; i < fa.num_elements; ++i) fa.x[i] = wmma::__float_to_tf32(fa.x[i]);
      for (int i = 0; i < fb.num_elements; ++i) fb.x[i] = wmma::__float_to_tf32(fb.x[i]);
    }
    wmma::mma_sync(fd, fa, fb, fd);
  }
  wmma::store_matrix_sync(d + row * kN + column, fd, kN, wmma::mem_row_major);
}

template <int M, int N, int K, typename T, typename Fragment, typename D, typename Layout>
void check_wmma(const char* line) {
  const auto a = small_numbers<T>(kM * kK, 1, 0, 3), b = small_numbers<T>(kK * kN, 2, 0, 3);
  Device<T> da(a), db(b);
  Device<D> d(kM * kN);
  wmma_product<M, N, K, T, Fragment, D, Layout><<<dim3(kN / N, kM / M), 32>>>(da.get(), db.get(), d.get());
  const bool good = is_product(a, b, d.read(), std::is_same<Layout, wmma::col_major>::value);
  if (!good) std::printf("%s\n", line);
  CHECK(good);
}

void wmma_types() {
  using wmma::col_major;
  using wmma::row_major;
  check_wmma<16, 16, 16, __half, __half, float, row_major>("f16 to f32");
  check_wmma<16, 16, 16, __half, __half, __half, col_major>("f16 to f16");
  check_wmma<32, 8, 16, __half, __half, float, col_major>("f16 m32n8k16");
  check_wmma<16, 16, 16, __nv_bfloat16, __nv_bfloat16, float, row_major>("bf16");
  check_wmma<16, 16, 8, float, wmma::precision::tf32, float, col_major>("tf32");
  check_wmma<16, 16, 16, signed char, signed char, int, row_major>("s8");
  check_wmma<16, 16, 16, unsigned char, unsigned char, int, col_major>("u8");
  check_wmma<32, 8, 16, unsigned char, unsigned char, int, col_major>("u8 m32n8k16");
  check_wmma<8, 8, 4, double, double, double, col_major>("f64");
}

// Computes a tile of 16 x 8 of d = a * b. a and b are copied to shared memory in 16-byte asynchronous copies,
// and to registers by ldmatrix.
__global__ void mma_product(const __half* a, const __half* b, float* d) {
  __shared__ alignas(16) __half sa[16 * kK], sb[kK * 8];
  const int lane = threadIdx.x, row = blockIdx.y * 16, column = blockIdx.x * 8;
  for (int i = lane; i < 16 * kK / 8; i += 32)
    __pipeline_memcpy_async(sa + i * 8, a + (row + i * 8 / kK) * kK + i * 8 % kK, 16);
  for (int i = lane; i < kK; i += 32) __pipeline_memcpy_async(sb + i * 8, b + i * kN + column, 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncwarp();
  float c[4] = {};
  for (int k = 0; k < kK; k += 16) {
    uint32_t fa[4], fb[2];
    const auto at_a =
        static_cast<uint32_t>(__cvta_generic_to_shared(sa + lane % 16 * kK + k + lane / 16 * 8));
    const auto at_b = static_cast<uint32_t>(__cvta_generic_to_shared(sb + (k + lane % 16) * 8));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3])
                 : "r"(at_a));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(fb[0]), "=r"(fb[1])
                 : "r"(at_b));
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
  }
  float* out = d + (row + lane / 4) * kN + column + lane % 4 * 2;
  out[0] = c[0];
  out[1] = c[1];
  out[8 * kN] = c[2];
  out[8 * kN + 1] = c[3];
}

void mma_and_ldmatrix() {
  const auto a = small_numbers<__half>(kM * kK, 3, -4, 4), b = small_numbers<__half>(kK * kN, 4, -4, 4);
  Device<__half> da(a), db(b);
  Device<float> d(kM * kN);
  mma_product<<<dim3(kN / 8, kM / 16), 32>>>(da.get(), db.get(), d.get());
  CHECK(is_product(a, b, d.read(), false));
}

__global__ void packed_halves(const __half2* a, const __half2* b, __half2* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = __hmax2(__hfma2_relu(a[i], b[i], __float2half2_rn(-1)), __hadd2(a[i], b[i]));
}
__global__ void packed_bf16(const __nv_bfloat162* a, const __nv_bfloat162* b, __nv_bfloat162* out,
                            int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = __hsub2(__hmul2(a[i], b[i]), __habs2(b[i]));
}

void few_bits() {
  const size_t count = 1000;
  const auto a = small_numbers<__half>(2 * count, 5, -9, 9), b = small_numbers<__half>(2 * count, 6, -9, 9);
  Device<__half> da(a), db(b), d(2 * count);
  packed_halves<<<8, 128>>>(reinterpret_cast<const __half2*>(da.get()),
                            reinterpret_cast<const __half2*>(db.get()), reinterpret_cast<__half2*>(d.get()),
                            count);
  bool good = true;
  const auto out = d.read();
  for (size_t i = 0; i < 2 * count; ++i) {
    const float x = a[i], y = b[i];
    good &= static_cast<float>(out[i]) == std::fmax(std::fmax(x * y - 1, 0.0f), x + y);
  }
  CHECK(good);
  const auto p = small_numbers<__nv_bfloat16>(2 * count, 7, -9, 9),
             q = small_numbers<__nv_bfloat16>(2 * count, 8, -9, 9);
  Device<__nv_bfloat16> dp(p), dq(q), dr(2 * count);
  packed_bf16<<<8, 128>>>(reinterpret_cast<const __nv_bfloat162*>(dp.get()),
                          reinterpret_cast<const __nv_bfloat162*>(dq.get()),
                          reinterpret_cast<__nv_bfloat162*>(dr.get()), count);
  const auto r = dr.read();
  good = true;
  for (size_t i = 0; i < 2 * count; ++i) {
    const float x = p[i], y = q[i];
    good &= static_cast<float>(r[i]) == x * y - std::fabs(y);
  }
  CHECK(good);
}

__global__ void quantise(const float* in, __nv_fp8_e4m3* small, __nv_fp8_e5m2* wide, float* back, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  small[i] = __nv_fp8_e4m3(in[i]);
  wide[i] = __nv_fp8_e5m2(in[i]);
  back[i] = static_cast<float>(small[i]) + static_cast<float>(wide[i]);
}

void fp8() {
  std::vector<float> in = {0,     -0.0f, 1,          -1.5f, 448, 449, 1e9f, -1e9f,
                           57344, 1e-3f, 0.0019531f, -0.3f, 17,  18,  19};
  Random random(9);
  while (in.size() < 2000) in.push_back((random.unit() - 0.5f) * static_cast<float>(1u << random.below(12)));
  Device<float> device(in), back(in.size());
  Device<__nv_fp8_e4m3> small(in.size());
  Device<__nv_fp8_e5m2> wide(in.size());
  quantise<<<16, 128>>>(device.get(), small.get(), wide.get(), back.get(), static_cast<int>(in.size()));
  const auto s = small.read();
  const auto w = wide.read();
  const auto b = back.read();
  bool good = true;
  for (size_t i = 0; i < in.size(); ++i) {
    // The header's conversions in plain C++ on the CPU give the expected values.
    good &= s[i].__x == __nv_fp8_e4m3(in[i]).__x && w[i].__x == __nv_fp8_e5m2(in[i]).__x;
    good &= b[i] == static_cast<float>(s[i]) + static_cast<float>(w[i]);
  }
  CHECK(good);
}

}  // namespace

int main() {
  const Case cases[] = {{"wmma", wmma_types},
                        {"mma and ldmatrix", mma_and_ldmatrix},
                        {"packed halves", few_bits},
                        {"fp8", fp8}};
  return run_cases(cases);
}
