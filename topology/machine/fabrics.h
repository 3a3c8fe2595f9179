// Parses HETCOMM_FABRIC, which assigns NICs to fabrics. Users set it if IP subnets do not show
// which NICs are connected to each other.
//
//   mlx5_0=rail0,mlx5_1=rail1   two fabrics that are not connected to each other
//   mlx5_*=ib,eth0=storage      a '*' at the end matches any suffix
//
// NICs in the same fabric can reach each other. NICs in different fabrics cannot. NICs are named as
// in HETCOMM_NIC. All hosts must use the same names for fabrics.
#pragma once

#include <string_view>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Sets Nic::fabric of the NICs that |text| names, and leaves the other NICs unchanged. Fails with
// INVALID_ARGUMENT if an entry lacks a NIC or a fabric, if the name of a fabric is too long, or if
// two entries assign a NIC to different fabrics. Fails with NOT_FOUND if an entry matches no NIC.
// On failure the text identifies the entry or its NIC, and |machine| is unchanged.
Status declare_fabrics(std::string_view text, Machine& machine);

}  // namespace hetcomm::topology
