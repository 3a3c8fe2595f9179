// Configuration variables for ranks and the links between them.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kLinkModel(
    kText, kFile, "HETCOMM_LINK_MODEL", "", nullptr,
    "On rank 0, a file of `hetcomm_bench links --format json`: what the links between hosts "
    "carry, for the choice of algorithms. Or one of `hetcomm_bench latency,bandwidth --format "
    "json`: what messages cost by transport; that of the first rank that has a transport counts "
    "for all. Without the former, links are estimated from the hosts' network interfaces.");
inline constexpr Variable kCluster(
    kText, kNoFile, "HETCOMM_CLUSTER", "", nullptr,
    "Name of the cluster that this rank belongs to, up to 63 characters: collective operations "
    "send little between ranks of different ones. Unset on all: hosts are told apart.");
inline constexpr Variable kHostLabel(
    kText, kNoFile, "HETCOMM_HOST_LABEL", "", nullptr,
    "Name of this host in a link model, up to 127 characters. Unset: the host's own name.");

inline constexpr const Variable* kCoreJobVariables[] = {&kLinkModel, &kCluster, &kHostLabel};

}  // namespace hetcomm::variable
