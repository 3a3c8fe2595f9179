// HETCOMM_FABRIC assigns NICs to fabrics where addresses do not show which NICs are joined.
//
//   mlx5_0=rail0,mlx5_1=rail1   two fabrics that are not joined
//   mlx5_*=ib,eth0=storage      a '*' at the end matches any ending
//
// NICs in one fabric reach each other. NICs in different fabrics do not. NICs are named as in
// HETCOMM_NIC. All hosts must use the same names for fabrics.
#pragma once

#include <string_view>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Sets Nic::fabric of the NICs that |text| names and leaves the other NICs unchanged.
// INVALID_ARGUMENT: an entry lacks a NIC or a fabric, the name of a fabric is too long, or two
// entries put a NIC into different fabrics. NOT_FOUND: no NIC has the name. On failure the text
// names the entry, and |machine| is unchanged.
Status declare_fabrics(std::string_view text, Machine& machine);

}  // namespace hetcomm::topology
