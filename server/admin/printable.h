// What a person, a terminal or a metric's label can be given of text that a stranger sent.
#pragma once
#include <string>
#include <string_view>

namespace gpupool::server {

// Well-formed UTF-8 without control characters; '?' stands for every byte of the rest.
std::string printable(std::string_view text);

}  // namespace gpupool::server
