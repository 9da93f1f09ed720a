#include "tests/server/softgpu/jit/isa_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace isa {
namespace {

uint64_t half_of(double value, int exponent_bits, int fraction_bits) {  // exact values only
  if (value == 0) return std::signbit(value) ? 0x8000 : 0;
  if (std::isinf(value)) return (value < 0 ? 0x8000u : 0u) | ((1u << exponent_bits) - 1) << fraction_bits;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);
  const int bias = (1 << (exponent_bits - 1)) - 1, least = 1 - bias;
  const int field = std::max(exponent - 1, least);
  const auto units =
      static_cast<uint64_t>(std::llround(std::ldexp(fraction, exponent - field + fraction_bits)));
  const uint64_t bits = (static_cast<uint64_t>(field + bias - 1) << fraction_bits) + units;
  return (value < 0 ? 0x8000u : 0u) | bits;
}

double number_of(uint64_t bits, char type) {
  if (type == 'f') return std::bit_cast<float>(static_cast<uint32_t>(bits));
  if (type == 'd') return std::bit_cast<double>(bits);
  if (type == 'b') return std::bit_cast<float>(static_cast<uint32_t>(bits << 16));
  const auto exponent = static_cast<int>(bits >> 10 & 31);
  const double fraction = static_cast<double>(bits & 0x3FF), sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
}

Value read_value(std::string text) {
  Value value;
  if (text == "lane") {
    value.kind = Value::Kind::lane;
    return value;
  }
  if (text.substr(0, 3) == "nan") {
    value.kind = Value::Kind::nan;
    value.type = text.at(3);
    return value;
  }
  if (text[0] == '~') value.kind = Value::Kind::near, text.erase(0, 1);
  const bool hexadecimal = text.find("0x") != std::string::npos;
  const char last = text.back();
  if (!hexadecimal && (last == 'f' || last == 'd' || last == 'h' || last == 'b')) {
    value.type = last;
    value.number = std::stod(text);
    value.low = last == 'f'   ? std::bit_cast<uint32_t>(static_cast<float>(value.number))
                : last == 'd' ? std::bit_cast<uint64_t>(value.number)
                : last == 'h' ? half_of(value.number, 5, 10)
                              : half_of(value.number, 8, 7);
    return value;
  }
  const auto integer = [](const std::string& digits) {
    return digits[0] == '-' ? static_cast<uint64_t>(std::stoll(digits, nullptr, 0))
                            : std::stoull(digits, nullptr, 0);
  };
  const size_t colon = text.find(':');
  value.low = integer(text.substr(0, colon));
  if (colon != std::string::npos) value.high = integer(text.substr(colon + 1));
  return value;
}

Place read_place(const std::string& text) {
  Place place;
  const size_t equals = text.find('=');
  if (equals == std::string::npos) throw std::runtime_error("expected PLACE=VALUE: " + text);
  size_t at = 0;
  while (at < equals && std::isalpha(static_cast<unsigned char>(text[at]))) ++at;
  place.space = text.substr(0, at);
  if (text[at] == '+') ++at;
  std::string digits = text.substr(at, equals - at);
  if (const size_t lane = digits.find('@'); lane != std::string::npos) {
    place.lane = static_cast<uint32_t>(std::stoul(digits.substr(lane + 1)));
    digits.resize(lane);
  }
  place.index = static_cast<uint32_t>(std::stoul(digits));
  place.value = read_value(text.substr(equals + 1));
  return place;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Replaces the first group of `text`, and the groups in step with it, by each of its words.
void expand(const std::string& text, std::vector<std::string>& out) {
  const size_t open = text.find('<');
  if (open == std::string::npos) return out.push_back(text);
  const auto words_at = [&](size_t at, size_t& close) {
    close = text.find('>', at);
    if (close == std::string::npos) throw std::runtime_error("a group is not closed");
    std::string inner = text.substr(at + 1, close - at - 1), number;
    if (inner.size() > 1 && inner[1] == ':' && std::isdigit(static_cast<unsigned char>(inner[0])))
      number = inner.substr(0, 1), inner.erase(0, 2);
    std::vector<std::string> words{number};
    std::stringstream stream(inner + ",");
    for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
    return words;
  };
  size_t close = 0;
  const auto first = words_at(open, close);
  for (size_t n = 1; n < first.size(); ++n) {
    std::string replaced = text.substr(0, open) + first[n];
    for (size_t at = close + 1; at < text.size();) {
      if (text[at] == '<' && !first[0].empty()) {
        size_t end = 0;
        if (const auto other = words_at(at, end); other[0] == first[0]) {
          if (other.size() != first.size()) throw std::runtime_error("groups in step have different sizes");
          replaced += other[n];
          at = end + 1;
          continue;
        }
      }
      replaced += text[at++];
    }
    expand(replaced, out);
  }
}

Form read_form(const std::string& text) {
  Form form;
  const size_t middle = text.find("::", text.find(' ') == std::string::npos ? 0 : text.find(" ::"));
  form.code = trimmed(text.substr(0, text.find(" ::")));
  if (middle == std::string::npos) throw std::runtime_error("expected ::");
  std::stringstream words(text.substr(middle + 2));
  bool results = false;
  for (std::string word; words >> word;) {
    if (word == "->") {
      results = true;
    } else if (word == "warp") {
      form.warp = true;
    } else if (word == "compiles") {
      form.compiles = true;
    } else if (word == "faults") {
      form.faults = true;
    } else if (word == "old") {
      form.old = true;
    } else if (word == "refused") {
      std::getline(words, form.refused);
      form.refused = trimmed(form.refused);
      if (form.refused.empty())
        throw std::runtime_error("expected a part of the error message after refused");
    } else {
      (results ? form.after : form.before).push_back(read_place(word));
    }
  }
  if (form.after.empty() && !form.compiles && !form.faults && form.refused.empty())
    throw std::runtime_error("the form expects no result");
  return form;
}

}  // namespace

uint32_t Place::bytes() const {
  if (space == "p" || space == "r" || space == "g" || space == "s") return 4;
  if (space == "b" || space == "gb" || space == "sb") return 1;
  if (space == "h" || space == "gh" || space == "sh") return 2;
  if (space == "x" || space == "gx" || space == "sx") return 8;
  if (space == "q") return 16;
  throw std::runtime_error("no such place: " + space);
}

std::string Place::text() const {
  return "%" + space + std::to_string(index);
}

std::vector<std::string> section_files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(ISA_FOLDER))
    files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

Section read_section(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + " cannot be read");
  Section section;
  section.file = std::filesystem::path(path).stem().string();
  std::string target = "80";
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty()) continue;
    try {
      if (line.substr(0, 3) == "## ") {
        section.instructions.push_back({line.substr(3), {}});
      } else if (line.substr(0, 2) == "# ") {
        section.title = line.substr(2);
      } else if (line.substr(0, 7) == "target ") {
        target = line.substr(7);
      } else if (line.substr(0, 7) == "module ") {
        section.module += line.substr(7) + "\n";
      } else {
        if (section.instructions.empty()) throw std::runtime_error("a row before the first instruction");
        Row row;
        row.code = trimmed(line.substr(0, line.find(" ::")));
        std::vector<std::string> lines;
        expand(line, lines);
        for (const std::string& one : lines) {
          row.forms.push_back(read_form(one));
          row.forms.back().line = number;
          row.forms.back().target = target;
        }
        row.refused = row.forms[0].refused;
        section.instructions.back().rows.push_back(std::move(row));
      }
    } catch (const std::exception& error) {
      throw std::runtime_error(path + ":" + std::to_string(number) + ": " + error.what());
    }
  }
  return section;
}

std::string kernel_text(const Form& form, const std::string& name) {
  std::string text =
      ".visible .entry " + name +
      "(.param .u64 out, .param .u64 memory) {\n"
      "  .reg .pred %p<8>; .reg .b8 %b<4>; .reg .b16 %h<8>; .reg .b32 %r<32>; .reg .b64 %x<32>;\n"
      "  .reg .b64 %g, %sx, %l, %out; .reg .b32 %s, %lane; .reg .b32 %word;\n"
      "  .shared .align 1024 .b8 shared_bytes[4096]; .local .align 16 .b8 local_bytes[64];\n"
      "  ld.param.u64 %g, [memory]; ld.param.u64 %out, [out]; mov.u32 %s, shared_bytes; mov.u64 %sx, "
      "shared_bytes;\n"
      "  mov.u64 %l, local_bytes; mov.u32 %lane, %laneid; mad.wide.u32 %out, %lane, 256, %out;\n";
  const bool wide = form.code.find("%q") != std::string::npos;
  if (wide) text += "  .reg .b128 %q<4>; .reg .b64 %low, %high;\n";
  for (const Place& place : form.before) {
    const std::string value = std::to_string(place.value.low), high = std::to_string(place.value.high);
    const bool lane = place.value.kind == Value::Kind::lane;
    if (place.space == "p")
      text += "  setp.ne.u32 " + place.text() + ", " + value + ", 0;\n";
    else if (place.space == "r")
      text += "  mov.b32 " + place.text() + ", " +
              (lane ? "%lane" : std::to_string(static_cast<uint32_t>(place.value.low))) + ";\n";
    else if (place.space == "h")
      text +=
          "  mov.b16 " + place.text() + ", " + std::to_string(static_cast<uint16_t>(place.value.low)) + ";\n";
    else if (place.space == "b")
      text += "  cvt.u8.u32 " + place.text() + ", " + std::to_string(static_cast<uint8_t>(place.value.low)) +
              ";\n";
    else if (place.space == "x")
      text += lane ? "  cvt.u64.u32 " + place.text() + ", %lane;\n"
                   : "  mov.b64 " + place.text() + ", " + value + ";\n";
    else if (place.space == "q")
      text += "  mov.b64 %low, " + value + "; mov.b64 %high, " + high + "; mov.b128 " + place.text() +
              ", {%low, %high};\n";
    else if (place.space[0] == 's')
      text += "  st.shared.b" + std::to_string(place.bytes() * 8) + " [shared_bytes+" +
              std::to_string(place.index) + "], " + value + ";\n";
  }
  if (form.warp) text += "  bar.warp.sync -1;\n";
  text += "  " + form.code + (form.code.find("; }") + 3 == form.code.size() ? "\n" : ";\n");
  if (form.warp) text += "  bar.warp.sync -1;\n";
  uint32_t slot = 0;
  for (const Place& place : form.after) {
    const std::string at = "[%out+" + std::to_string(kSlotBytes * slot++) + "]";
    if (place.space == "p")
      text += "  selp.u32 %word, 1, 0, " + place.text() + "; st.global.u32 " + at + ", %word;\n";
    else if (place.space == "q")
      text += "  mov.b128 {%low, %high}, " + place.text() + "; st.global.v2.b64 " + at + ", {%low, %high};\n";
    else if (place.space[0] == 's')
      text += "  ld.shared.b64 %out, [shared_bytes+" + std::to_string(place.index / 8 * 8) +
              "]; shr.u64 %out, %out, " + std::to_string(place.index % 8 * 8) +
              "; { .reg .b64 %to; ld.param.u64 %to, [out]; mad.wide.u32 %to, %lane, 256, %to; st.global.b64 "
              "[%to+" +
              std::to_string(kSlotBytes * (slot - 1)) + "], %out; mov.b64 %out, %to; }\n";
    else if (!place.is_memory())
      text += "  st.global.b" + std::to_string(place.bytes() * 8) + " " + at + ", " + place.text() + ";\n";
  }
  return text + "  ret;\n}\n";
}

std::string module_text(const Section& section, const std::string& target, const std::string& kernels) {
  return ".version 9.0\n.target sm_" + target + "\n.address_size 64\n" + section.module + kernels;
}

bool matches(const Place& expected, uint64_t low, uint64_t high) {
  const uint32_t bytes = expected.bytes();
  const uint64_t mask = bytes >= 8 ? ~uint64_t{0} : (uint64_t{1} << bytes * 8) - 1;
  low &= mask;
  const Value& value = expected.value;
  switch (value.kind) {
    case Value::Kind::nan: return std::isnan(number_of(low, value.type));
    case Value::Kind::lane: return low == expected.lane;
    case Value::Kind::near: {
      const double got = number_of(low, value.type), scale = std::max(std::fabs(value.number), 1e-30);
      const double error = value.type == 'h' ? 0x1p-9 : value.type == 'b' ? 0x1p-6 : 0x1p-18;
      return std::fabs(got - value.number) <= scale * error;
    }
    default: return low == (value.low & mask) && (bytes < 16 || high == value.high);
  }
}

}  // namespace isa
