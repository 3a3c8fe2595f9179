// The caller's functions as an exchange of values among ranks. With allgather: two calls for each
// exchange, sizes and then values padded to the largest. With put and get: rank r puts <scope>/r,
// the lowest rank collects and puts <scope>/all, so that n ranks cost O(n) calls. A value says
// whether its rank exchanges with all others or by groups: ranks that disagree read each other's.
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

// The largest value of an exchange: the caller's, and what stands in front of it.
inline constexpr size_t kMaxExchangeValue = 64 * 1024 + 128;

// An exchange brings values from rank to rank.
class CallbackExchange {
 public:
  using Values = std::vector<std::vector<std::byte>>;

  virtual ~CallbackExchange() = default;
  // Returns whether groups of ranks can exchange values. Otherwise only all ranks together can.
  virtual bool has_groups() const = 0;
  // The value of the first rank of |members|, to all of them; what the others say does not count.
  virtual Result<std::vector<std::byte>> broadcast(const std::string& scope, const Members& members,
                                                   ConstByteSpan mine, uint64_t deadline_ns) = 0;
  // All values of |members|, to all of them.
  virtual Result<Values> allgather(const std::string& scope, const Members& members,
                                   ConstByteSpan mine, uint64_t deadline_ns) = 0;
  // Rank 0: what it broadcast to all under |scope| is needed no more.
  virtual Status forget(const std::string& scope) = 0;
};

// Null where |options| have no functions, as a job of one rank may. |options| are copied.
std::unique_ptr<CallbackExchange> make_callback_exchange(
    const hetcomm_bootstrap_options_t& options);

}  // namespace hetcomm
