// Formats a GPU's UUID as nvidia-smi prints it. Used by the client's libraries and, through protocol/lease,
// by poold and pool-scheduler. No state, any thread.
#pragma once
#include <string>
#include <string_view>

namespace gpupool {

// Returns "GPU-0123abcd-...", or an empty string unless `bytes` has 16 bytes.
inline std::string gpu_uuid_text(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  if (bytes.size() != 16) return {};
  std::string text = "GPU-";
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[static_cast<unsigned char>(bytes[i]) >> 4];
    text += kDigits[static_cast<unsigned char>(bytes[i]) & 15];
  }
  return text;
}

}  // namespace gpupool
