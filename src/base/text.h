// Texts beside an outcome: worth having, and not worth failing for.
#pragma once

#include <new>
#include <string>
#include <utility>

#include "src/base/status.h"

namespace hetcomm {

// What |make| returns; empty when memory runs out.
template <typename Make>
std::string text_or_none(Make&& make) noexcept {
  try {
    return std::forward<Make>(make)();
  } catch (const std::bad_alloc&) {
    return {};
  }
}

// |code| with the text that |make| returns; with its own when memory runs out.
template <typename Make>
Status status_or_code(Code code, Make&& make) noexcept {
  try {
    return {code, std::forward<Make>(make)()};
  } catch (const std::bad_alloc&) {
    return code;
  }
}

}  // namespace hetcomm
