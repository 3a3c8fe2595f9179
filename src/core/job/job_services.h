// Holds the objects that the pairs of one job share. Only Job sees all of them; other parts of the
// job get only the objects that they need. Callers hold the baton.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "src/core/device/host_blocks.h"
#include "src/core/job/paths/job_environment.h"
#include "src/core/memory/device_sums.h"
#include "src/core/memory/registration.h"
#include "src/core/memory/variables.h"
#include "src/core/peer/pair_services.h"
#include "src/core/peer/variables.h"
#include "src/net/variables.h"

namespace hetcomm {

struct JobServices {
  JobServices(const JobEnvironment& environment, const PeerPaths& paths, PairListener& listener,
              int rank)
      : terms{.rank = rank,
              .detection_ns = environment.config.number(variable::kDetectionTime),
              .cool_down_ns = environment.config.number(variable::kCoolDown)},
        host_blocks(kMaxKeptBytes, &environment.devices.abandoned()),
        data(environment.engine, environment.log, environment.devices, environment.config,
             environment.memory_nodes.devices, environment.overlaps),
        sums(environment.devices, data.staging, sums_mode(environment.config)),
        turns(environment.engine),
        links(turns),
        connections{.engine = environment.engine,
                    .log = environment.log,
                    .paths = paths,
                    .listener = listener,
                    .terms = terms},
        access{environment.engine, environment.log, listener, registrations} {}
  JobServices(const JobServices&) = delete;
  JobServices& operator=(const JobServices&) = delete;

  PairServices for_pairs() {
    return {.terms = terms,
            .data = data,
            .turns = turns,
            .links = links,
            .connections = connections,
            .access = access};
  }

  PairTerms terms;
  // Host memory in which redistributions pack and receive their messages, and keep data between
  // hops. While redistributions exist, unused blocks are kept for reuse.
  HostBlocks host_blocks;
  DataServices data;
  DeviceSums sums;
  PairTurns turns;
  LinkShares links;
  SlotTable<Registration> registrations;
  ConnectionServices connections;
  AccessServices access;

 private:
  // The most unused host memory, in bytes, that |host_blocks| keeps, unless a single block is
  // larger.
  static constexpr uint64_t kMaxKeptBytes = 128u << 20;

  static DeviceSums::Mode sums_mode(const Config& config) {
    const std::string_view mode = config.text(variable::kDeviceSums);
    if (mode == "off") return DeviceSums::Mode::kHost;
    return mode == "on" ? DeviceSums::Mode::kDevice : DeviceSums::Mode::kMeasured;
  }
};

}  // namespace hetcomm
