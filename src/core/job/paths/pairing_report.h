// Reports how a pair of ranks is connected: every pairing of a network interface of this rank with
// one of the peer's, and why it is used or not. The report is a table for people or JSON for
// programs. All functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/core/job/paths/candidates.h"
#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"
#include "topology/machine/pairing.h"

namespace hetcomm {

// A Pairing is a Candidate without references into the job.
struct Pairing {
  std::string kind;       // kind of transport: "rdma"
  std::string transport;  // this rank's transport: "rdma#1"
  std::string nic;        // interface or RDMA port that it is bound to; empty: none
  std::string peer;       // the peer's transport; empty: it has none of this kind
  topology::Port port;    // this rank's port
  topology::Port to;      // the peer's port
  Status reach;           // OK, or why the peer cannot be reached
  double score_us = 0;    // estimated time of a 64 KiB message
  PairingRole role = PairingRole::kUnused;
  uint64_t mbit_per_s = 0;  // expected rate; 0: unknown
  bool cooling = false;     // the pairing failed recently
  bool hopeless = false;    // it has failed repeatedly, and is tried rarely while others work
  bool in_use = false;
};

struct PairingReport {
  int32_t rank = 0;
  int32_t peer = 0;
  int32_t device = 0;             // the device of the context whose data is sent
  std::string device_name;        // the device's name, for people
  size_t most_rails = 0;          // HETCOMM_RAILS
  std::vector<Pairing> pairings;  // best first
  // The machine of this rank. The list of its NICs is empty if none are known.
  topology::Machine machine;
  // The order in which the device uses the machine's NICs.
  topology::NicOrder order;
  // Names of the NICs that the device leaves to other devices (topology/machine/own_nics.h).
  std::vector<std::string> left_nics;
  std::vector<NicRefusal> refusals;  // interfaces that a transport cannot use
};

std::string to_text(const PairingReport& report);
// Returns a JSON object with the keys rank, peer, device, device_name, pairings and idle_nics.
std::string to_json(const PairingReport& report);

}  // namespace hetcomm
