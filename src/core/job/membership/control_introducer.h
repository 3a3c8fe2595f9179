// Carries profiles over the control plane. A job of one rank has no control plane, and receives no
// profiles.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/job/membership/introductions.h"
#include "src/core/peer/pair_services.h"

namespace hetcomm {

class ControlIntroducer final : public Introducer {
 public:
  explicit ControlIntroducer(ConnectionServices& services) : services_(services) {}

  void ask_profile(int rank) override HETCOMM_UNDER_BATON { services_.control->ask_profile(rank); }
  std::string find_profile(int rank) override HETCOMM_UNDER_BATON {
    return services_.control != nullptr ? services_.control->profiles().find(rank) : std::string();
  }
  void remove_profile(int rank) override HETCOMM_UNDER_BATON {
    if (services_.control != nullptr) services_.control->profiles().remove(rank);
  }
  void learn_addresses(int rank, std::vector<Address> addresses) override HETCOMM_UNDER_BATON {
    services_.control->learn_addresses(rank, std::move(addresses));
  }

 private:
  ConnectionServices& services_;
};

}  // namespace hetcomm
