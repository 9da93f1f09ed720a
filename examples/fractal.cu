// Draws the Mandelbrot set and writes the picture as a PPM file.
#include <vector>

#include "common/example.h"

struct View {
  int width, height, max_iterations;
};

// Returns the number of steps until the point escapes. Explicit fma() makes CPU and GPU results equal bit for
// bit.
__host__ __device__ inline int escape_time(const View& view, int x, int y) {
  const double scale = 3.0 / view.width;
  const double real = fma(static_cast<double>(x), scale, -2.2);
  const double imaginary = (y - 0.5 * view.height) * scale;
  double a = 0, b = 0;
  int step = 0;
  while (step < view.max_iterations && fma(a, a, b * b) <= 4.0) {
    const double next = fma(a, a, fma(-b, b, real));
    b = fma(2 * a, b, imaginary);
    a = next;
    ++step;
  }
  return step;
}

__host__ __device__ inline uchar3 color_of(const View& view, int step) {
  if (step == view.max_iterations) return make_uchar3(0, 0, 0);
  return make_uchar3((step * 9) & 255, (step * 5) & 255, (64 + step * 3) & 255);
}

__global__ void draw(View view, uchar3* picture) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < view.width && y < view.height)
    picture[y * view.width + x] = color_of(view, escape_time(view, x, y));
}

int main(int argc, char** argv) {
  long width = 384, height = 288, iterations = 150;
  const char* output = "fractal.ppm";
  parse_options(argc, argv, "Draws the Mandelbrot set into a PPM picture.",
                {{"--width", "pixels", &width, 1, 16384},
                 {"--height", "pixels", &height, 1, 16384},
                 {"--iterations", "steps before a point counts as inside", &iterations, 1, 1'000'000},
                 {"--output", "picture to write (default fractal.ppm)", nullptr, 0, 0, &output}});
  const View view = {static_cast<int>(width), static_cast<int>(height), static_cast<int>(iterations)};

  print_device();
  Stopwatch watch;
  std::vector<uchar3> picture(width * height);
  const size_t bytes = picture.size() * sizeof(uchar3);
  uchar3* device_picture;
  CUDA_CHECK(cudaMalloc(&device_picture, bytes));
  const dim3 block(32, 8);
  draw<<<dim3((width + 31) / 32, (height + 7) / 8), block>>>(view, device_picture);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaMemcpy(picture.data(), device_picture, bytes, cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaFree(device_picture));
  const double milliseconds = watch.milliseconds();

  bool passed = true;
  for (int y = 0; y < view.height; ++y)
    for (int x = 0; x < view.width; ++x) {
      const uchar3 expected = color_of(view, escape_time(view, x, y));
      const uchar3 drawn = picture[y * width + x];
      passed &= drawn.x == expected.x && drawn.y == expected.y && drawn.z == expected.z;
    }

  std::FILE* file = std::fopen(output, "wb");
  bool written = file && std::fprintf(file, "P6\n%ld %ld\n255\n", width, height) > 0 &&
                 std::fwrite(picture.data(), 1, bytes, file) == bytes;
  if (file) written = std::fclose(file) == 0 && written;
  if (!written) {
    std::fprintf(stderr, "cannot write %s\n", output);
    return EXIT_FAILURE;
  }
  std::printf("result   %ld x %ld pixels in %s, checksum %016llx\n", width, height, output,
              static_cast<unsigned long long>(checksum(picture.data(), bytes)));
  return finish(passed, milliseconds);
}
