// The ranks of a job agree on one link model. Rank 0 reads it from HETCOMM_LINK_MODEL and
// distributes it when the job is made. All ranks then check that the model fits what each rank has
// reported about itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "src/base/status.h"
#include "src/bootstrap/bootstrap.h"
#include "src/core/job/membership/peer_directory.h"
#include "src/core/job/membership/transport_costs.h"
#include "src/system/config.h"
#include "topology/links/link_model.h"

namespace hetcomm {

// Contents of the file of HETCOMM_LINK_MODEL: the links between hosts, or the message costs by
// transport.
struct LinkFile {
  TransportCosts costs;
  std::optional<topology::LinkModel> model;
};

// Reads a file of either form. Fails, with a text that names the file, if it has neither form.
Result<LinkFile> read_link_file(const std::string& path);
// Reads the file of HETCOMM_LINK_MODEL. The result is empty if the variable is not set.
Result<LinkFile> read_link_file(const Config& config);

// Returns HETCOMM_HOST_LABEL, or the host's own name.
Result<std::string> own_host_label(const Config& config);

// Distributes rank 0's |text| to all ranks, and parses it. Collective. Blocks, so the caller must
// not hold the baton. |scope| is as for Bootstrap::broadcast().
Result<topology::LinkModel> hand_out_link_model(Bootstrap& bootstrap, const std::string& scope,
                                                const std::string& text, uint64_t deadline_ns);

// Fails with INVALID_ARGUMENT if the model lacks a rank's host or contradicts its cluster. The text
// names the rank.
Status check_ranks(const topology::LinkModel& model, const PeerDirectory& peers);

}  // namespace hetcomm
