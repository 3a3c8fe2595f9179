// Labels of the objects of a Machine for texts and pictures.
#pragma once

#include <string>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

// "acc3", as in HETCOMM_NIC.
std::string accelerator_label(size_t index);
std::string nic_label(size_t index);  // "nic3"
// "NUMA node 0 (package 0, processors 0-31, 64 GiB)"
std::string describe(const NumaNode& node);
// "0000:3b:00.0 NVIDIA 10de:2330"
std::string describe(const Accelerator& accelerator);
// "mlx5_0:1 (ib0), 200 Gbit/s, up, 10.0.0.0/16"
std::string describe(const Nic& nic);
// "root complex 0000:3a:00.0", "bridge 0000:3a:01.0, 31.5 GB/s"
std::string describe(const PciNode& node);

}  // namespace hetcomm::topology
