// Kernels with parameters of every size and alignment; compiled by make_images.sh, never run.
struct Mixed {
  char a;
  double b;
  int c[3];
};

extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void mixed(char a, short b, Mixed s, float4 v, long long l,
                                 const __grid_constant__ Mixed t) {
  if (a == b && s.a == t.a && v.x > l) asm volatile("trap;");
}

extern "C" __global__ void no_params() {}

#ifdef LARGE_PARAMS
struct Large {
  char bytes[20000];
};
extern "C" __global__ void large(int a, Large b, char c) {
  if (a == b.bytes[a] && c) asm volatile("trap;");
}
#endif
