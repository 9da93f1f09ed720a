#include "server/softgpu/exec/printf_format.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "server/softgpu/exec/checked_read.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

constexpr int kMaxWidth = 4096;  // maximum field width and number of digits of precision

struct Conversion {
  char flags[8] = {};
  int width = -1, precision = -1;
  bool width_argument = false, precision_argument = false;
  char length[3] = {};
  bool wide = false;  // an integer argument has 8 bytes
  char type = 0;
  const char* end = nullptr;  // the character after the conversion
};

int read_number(const char*& at) {
  int number = 0;
  for (; *at >= '0' && *at <= '9'; ++at) number = std::min(number * 10 + (*at - '0'), kMaxWidth);
  return number;
}

// Parses the part of a conversion after '%'. The type is 0 if the format ends within it.
Conversion parse(const char* at) {
  Conversion c;
  size_t flags = 0;
  for (; *at != '\0' && std::strchr("-+ #0'", *at) != nullptr; ++at) {
    if (flags < sizeof c.flags - 1 && std::strchr(c.flags, *at) == nullptr) c.flags[flags++] = *at;
  }
  if (*at == '*') {
    c.width_argument = true;
    ++at;
  } else if (*at >= '0' && *at <= '9') {
    c.width = read_number(at);
  }
  if (*at == '.') {
    ++at;
    if (*at == '*') {
      c.precision_argument = true;
      ++at;
    } else {
      c.precision = read_number(at);
    }
  }
  size_t length = 0;
  for (; *at != '\0' && std::strchr("hlLjztq", *at) != nullptr; ++at) {
    if (length < sizeof c.length - 1) c.length[length++] = *at;
  }
  c.wide = length > 0 && c.length[0] != 'h';
  c.type = *at;
  c.end = *at == '\0' ? at : at + 1;
  return c;
}

class Formatter {
 public:
  Formatter(char* text, uint64_t capacity, uint64_t arguments)
      : text_(text), capacity_(capacity), next_(arguments) {}

  FormattedText run(const char* format) {
    while (*format != '\0' && result_.readable) {
      const char* percent = std::strchr(format, '%');
      const char* plain_end = percent != nullptr ? percent : format + std::strlen(format);
      append(format, static_cast<uint64_t>(plain_end - format));
      if (percent == nullptr) break;
      if (percent[1] == '%') {
        append("%", 1);
        format = percent + 2;
        continue;
      }
      Conversion c = parse(percent + 1);
      if (!convert(c)) append(percent, static_cast<uint64_t>(c.end - percent));
      format = c.end;
    }
    return result_;
  }

 private:
  void append(const char* bytes, uint64_t count) {
    count = std::min(count, capacity_ - result_.length);
    std::memcpy(text_ + result_.length, bytes, count);
    result_.length += count;
  }

  template <typename T>
  T argument() {
    T value{};
    next_ = round_up(next_, sizeof(T));
    if (!read_checked(&value, next_, sizeof(T))) {
      result_.readable = false;
      result_.bad_address = next_;
      return T{};
    }
    next_ += sizeof(T);
    ++result_.arguments;
    return value;
  }

  // Appends one value through snprintf. The format is built here, never taken from the kernel.
  template <typename T>
  void print(const Conversion& c, const char* length, char type, T value) {
    char format[32];
    const bool has_precision = c.precision >= 0;
    std::snprintf(format, sizeof format, has_precision ? "%%%s*.*%s%c" : "%%%s*%s%c", c.flags, length, type);
    const uint64_t room = capacity_ - result_.length;
    const int width = std::max(c.width, 0);
    const int written = has_precision
                            ? std::snprintf(scratch_, sizeof scratch_, format, width, c.precision, value)
                            : std::snprintf(scratch_, sizeof scratch_, format, width, value);
    if (written <= 0 || room == 0) return;
    append(scratch_, std::min<uint64_t>(static_cast<uint64_t>(written), sizeof scratch_ - 1));
  }

  // Returns false if this is no conversion or exceeds the argument limit; the caller then prints it verbatim.
  bool convert(Conversion& c) {
    if (c.type == '\0' || std::strchr("diuoxXcpsfFeEgGaA", c.type) == nullptr) return false;
    const int needed = 1 + c.width_argument + c.precision_argument;
    if (result_.arguments + needed > static_cast<int>(kMaxPrintfArguments)) return false;
    if (c.width_argument) {
      const int width = argument<int32_t>();
      if (width < 0 && std::strchr(c.flags, '-') == nullptr && std::strlen(c.flags) < sizeof c.flags - 1) {
        c.flags[std::strlen(c.flags)] = '-';
      }
      c.width = width == INT32_MIN ? kMaxWidth : std::min(width < 0 ? -width : width, kMaxWidth);
    }
    if (c.precision_argument) c.precision = std::min(argument<int32_t>(), kMaxWidth);
    switch (c.type) {
      case 'd':
      case 'i':
        if (c.wide) {
          print(c, "ll", c.type, static_cast<long long>(argument<int64_t>()));
        } else {
          print(c, c.length, c.type, argument<int32_t>());
        }
        break;
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        if (c.wide) {
          print(c, "ll", c.type, static_cast<unsigned long long>(argument<uint64_t>()));
        } else {
          print(c, c.length, c.type, argument<uint32_t>());
        }
        break;
      case 'c': print(c, "", 'c', argument<int32_t>() & 0xff); break;
      case 'p': print(c, "", 'p', reinterpret_cast<void*>(argument<uint64_t>())); break;
      case 's': string(c); break;
      default: print(c, "", c.type, argument<double>()); break;
    }
    return true;
  }

  void string(const Conversion& c) {
    const uint64_t address = argument<uint64_t>();
    if (!result_.readable) return;
    const char* bytes = "(null)";
    uint64_t length = 6;
    if (address != 0) {
      // Read directly into the buffer behind the existing text, then move behind the padding.
      const uint64_t room = capacity_ - result_.length;
      const uint64_t wanted =
          c.precision >= 0 ? std::min<uint64_t>(static_cast<uint64_t>(c.precision), room) : room;
      if (wanted == 0) return pad(c, 0);
      const int64_t got = read_string_checked(text_ + result_.length, wanted + (wanted < room), address);
      if (got < 0) {
        result_.readable = false;
        result_.bad_address = address;
        return;
      }
      bytes = text_ + result_.length;
      length = static_cast<uint64_t>(got);
    } else if (c.precision >= 0) {
      length = std::min<uint64_t>(length, static_cast<uint64_t>(c.precision));
    }
    const auto width = static_cast<uint64_t>(std::max(c.width, 0));
    const uint64_t padding = width > length ? width - length : 0;
    const uint64_t room = capacity_ - result_.length;
    const bool left = std::strchr(c.flags, '-') != nullptr;
    const uint64_t before = left ? 0 : std::min(padding, room);
    const uint64_t kept = std::min(length, room - before);
    std::memmove(text_ + result_.length + before, bytes, kept);
    std::memset(text_ + result_.length, ' ', before);
    result_.length += before + kept;
    if (left) pad(c, length);
  }

  void pad(const Conversion& c, uint64_t length) {
    const auto width = static_cast<uint64_t>(std::max(c.width, 0));
    for (; length < width; ++length) append(" ", 1);
  }

  char* text_;
  uint64_t capacity_;
  uint64_t next_;
  FormattedText result_;
  // Large enough for the widest field; %f of the largest double has 309 digits plus the precision.
  char scratch_[kMaxWidth + 512];
};

}  // namespace

FormattedText format_device_text(char* text, uint64_t capacity, const char* format, uint64_t arguments) {
  return Formatter(text, capacity, arguments).run(format);
}

}  // namespace gpupool::softgpu
