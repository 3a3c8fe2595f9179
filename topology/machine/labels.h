// Makes labels for the objects of a Machine, for texts and pictures.
#pragma once

#include <string>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Returns the label of an accelerator in HETCOMM_NIC, such as "acc3".
std::string accelerator_label(size_t index);
std::string nic_label(size_t index);  // such as "nic3"
// Returns a text such as "NUMA node 0 (package 0, processors 0-31, 64 GiB)".
std::string describe(const NumaNode& node);
// Returns a text such as "0000:3b:00.0 NVIDIA 10de:2330".
std::string describe(const Accelerator& accelerator);
// Returns a text such as "mlx5_0:1 (ib0), 200 Gbit/s, up, 10.0.0.0/16".
std::string describe(const Nic& nic);
// Returns a text such as "root complex 0000:3a:00.0" or "bridge 0000:3a:01.0, 31.5 GB/s".
std::string describe(const PciNode& node);

}  // namespace hetcomm::topology
