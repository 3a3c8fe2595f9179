// Makes labels and descriptions of the objects of a Machine, for output to users.
#pragma once

#include <string>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Returns the label of an accelerator, such as "acc3". HETCOMM_NIC uses it too.
std::string accelerator_label(size_t index);
std::string nic_label(size_t index);  // such as "nic3"
// Returns a description such as "NUMA node 0 (package 0, processors 0-31, 64 GiB)".
std::string describe(const NumaNode& node);
// Returns a description such as "0000:3b:00.0 NVIDIA 10de:2330".
std::string describe(const Accelerator& accelerator);
// Returns a description such as "mlx5_0:1 (ib0), 200 Gbit/s, up, 10.0.0.0/16".
std::string describe(const Nic& nic);
// Returns a description such as "root complex 0000:3a:00.0" or "bridge 0000:3a:01.0, 31.5 GB/s".
std::string describe(const PciNode& node);

}  // namespace hetcomm::topology
