#include "tests/e2e/json.h"

namespace gpupool::testing {

Json parse_json(const std::string& text) {
  return Json::parse(text);
}

}  // namespace gpupool::testing
