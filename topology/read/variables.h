// Declares the variables that describe the machine and its NICs.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kNic(
    kText, kNoFile, "HETCOMM_NIC", "", nullptr,
    "NICs to use, best first, by interface, RDMA device, 'device:port' or PCI address: "
    "'mlx5_0,eth*', or with ^ those not to use. HETCOMM_RDMA_NIC and HETCOMM_INTERFACE follow "
    "from "
    "it where they are unset. 'acc2=mlx5_2' or 'numa0=eth0', after a '|', is a list for one "
    "accelerator or NUMA node, as `hetcomm_info topology` shows.");
inline constexpr Variable kFabric(
    kText, kNoFile, "HETCOMM_FABRIC", "", nullptr,
    "Fabrics of NICs, such as 'mlx5_0=rail0,mlx5_1=rail1', where addresses do not tell: NICs of "
    "one fabric reach each other, those of two do not. NICs are named as in HETCOMM_NIC.");
inline constexpr Variable kTopology(
    kText, kFile, "HETCOMM_TOPOLOGY", "", nullptr,
    "File that describes this host: hwloc's (NAME.xml) or what `hetcomm_info topology --format "
    "json` printed. It counts if it fits the host; empty means the host itself.");
inline constexpr Variable kTopologyTrust(
    kChoice, kNoFile, "HETCOMM_TOPOLOGY_TRUST", "off", "off|on",
    "Whether the file of HETCOMM_TOPOLOGY counts even if it does not fit the host.");

inline constexpr const Variable* kTopologyReadVariables[] = {&kNic, &kFabric, &kTopology,
                                                             &kTopologyTrust};

}  // namespace hetcomm::variable
