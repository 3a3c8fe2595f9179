// Which transports a communicator may use: "shm,tcp" names them, "^shm,tcp" names those that it may
// not use, and an empty list allows all.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "transports/transport.h"

namespace hetcomm {

class TransportChoice {
 public:
  // UNSUPPORTED, with the names that there are, when |list| has another one.
  static Result<TransportChoice> parse(
      std::string_view list, std::span<const std::unique_ptr<TransportFactory>> factories);

  bool allows(std::string_view name) const;
  // The user has named it, so that it is an error when it cannot be used.
  bool demands(std::string_view name) const;
  // Why |name| is not allowed.
  std::string refusal() const;

 private:
  bool has(std::string_view name) const;

  std::vector<std::string> names_;
  bool excludes_ = false;  // |names_| are those that may not be used
};

}  // namespace hetcomm
