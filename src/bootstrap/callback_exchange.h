// Exchanges values among ranks through the caller's functions. With allgather, each exchange takes
// two calls: one for the sizes, and one for the values, padded to the largest. With put and get,
// rank r puts <scope>/r, and the lowest rank collects these values and puts <scope>/all, so n ranks
// cost O(n) calls. Each value that is put also records whether its rank exchanges values with all
// others or by groups, so ranks that disagree notice this in each other's values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <hetcomm/bootstrap.h>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/bootstrap/rank_group.h"
#include "src/bootstrap/store_protocol.h"

namespace hetcomm {

// The largest value of an exchange: the caller's value and its header.
inline constexpr size_t kMaxExchangeValue = 64 * 1024 + 128;

// Exchanges values among ranks through one kind of callback.
class CallbackExchange {
 public:
  using Values = std::vector<std::vector<std::byte>>;

  virtual ~CallbackExchange() = default;
  // Returns whether groups of ranks can exchange values. Otherwise only all ranks together can.
  virtual bool has_groups() const = 0;
  // Returns the value of the first of |members| to all of them. The others' values are ignored.
  virtual Result<std::vector<std::byte>> broadcast(const std::string& scope, const Members& members,
                                                   ConstByteSpan mine, uint64_t deadline_ns) = 0;
  // Returns all values of |members| to all of them.
  virtual Result<Values> allgather(const std::string& scope, const Members& members,
                                   ConstByteSpan mine, uint64_t deadline_ns) = 0;
  // Deletes the value that rank 0 broadcast to all ranks under |scope|. No rank may still need it.
  virtual Status forget(const std::string& scope) = 0;
};

// Makes an exchange through the functions in |options|, which are copied. Returns null if |options|
// have no functions, as in a job of one rank.
std::unique_ptr<CallbackExchange> make_callback_exchange(
    const hetcomm_bootstrap_options_t& options);

}  // namespace hetcomm
