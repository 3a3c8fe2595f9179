// Chooses the transports that a communicator may use: "shm,tcp" names them, "^shm,tcp" names those
// that it must not use, and an empty list allows all.
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
  // Parses |list|. Fails with UNSUPPORTED, and the names of all transports, if the list has an
  // unknown name.
  static Result<TransportChoice> parse(
      std::string_view list, std::span<const std::unique_ptr<TransportFactory>> factories);

  bool allows(std::string_view name) const;
  // Returns whether the user's list requests |name|. It is then an error if no such transport can
  // be made. A list that only excludes transports requests none.
  bool demands(std::string_view name) const;
  // Returns the reason why allows() has returned false.
  std::string refusal() const;

 private:
  bool has(std::string_view name) const;

  std::vector<std::string> names_;
  bool excludes_ = false;  // |names_| are the excluded ones
};

}  // namespace hetcomm
