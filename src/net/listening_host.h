// ListeningHost describes the host of a process and the addresses at which the process listens. A
// transport that connects by IP sends this description to its peers. Each peer chooses the
// addresses that it can try.
#pragma once

#include <optional>
#include <vector>

#include "src/base/bytes.h"
#include "src/base/status.h"
#include "src/net/address.h"
#include "src/system/host_id.h"

namespace hetcomm {

inline constexpr size_t kMaxListeningAddresses = 8;

struct ListeningHost {
  HostId id{};
  std::vector<Address> addresses;  // IPv4 and IPv6 with their ports, best first

  // Writes the first kMaxListeningAddresses addresses.
  void encode(ByteWriter& writer) const;
  // Returns nothing if the input, which may be hostile, is not a host with 1 to
  // kMaxListeningAddresses addresses.
  static std::optional<ListeningHost> decode(ByteReader& reader);
};

// Returns the addresses in |theirs| that can be tried from |mine|. Leaves out families on which
// this rank does not listen, loopback addresses of another host, and addresses that both hosts
// have, as in private networks of containers. A link-local IPv6 address in |theirs| gets the scope
// of the link-local address in |mine|, because both belong to the link that leads to rank 0. It is
// left out if |mine| has no link-local address. Fails with UNSUPPORTED if no address is left; the
// text gives the reason for each.
Result<std::vector<Address>> usable_addresses(const ListeningHost& mine,
                                              const ListeningHost& theirs);

}  // namespace hetcomm
