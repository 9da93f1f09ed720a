// Formats a GPU's UUID as nvidia-smi prints it. For the client's libraries, which cannot link protocol/lease,
// whose equivalent function brings in Protobuf. Stateless.
#pragma once
#include <cstdio>
#include <string>

namespace gpupool::cuda {

// Returns "GPU-0123abcd-...". `uuid`: 16 bytes.
inline std::string gpu_uuid_text(const std::string& uuid) {
  std::string text = "GPU-";
  char digits[3];
  for (size_t i = 0; i < uuid.size(); ++i) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid[i]));
    text += digits;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

}  // namespace gpupool::cuda
