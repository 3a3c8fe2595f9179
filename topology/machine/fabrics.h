// HETCOMM_FABRIC: which NICs belong to which fabric, where addresses do not tell.
//
//   mlx5_0=rail0,mlx5_1=rail1   two fabrics that are not joined
//   mlx5_*=ib,eth0=storage      a '*' at the end matches what begins so
//
// NICs of one fabric reach each other, those of two do not. NICs are named as in HETCOMM_NIC. All
// hosts have to use the same names of fabrics.
#pragma once

#include <string_view>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Sets Nic::fabric of those that |text| names; the others keep what they have. INVALID_ARGUMENT for
// an entry without a NIC or a fabric, a fabric whose name is too long, and a NIC that two entries
// put into different fabrics; NOT_FOUND for a name that no NIC has. The text names the entry, and
// |machine| is as it was.
Status declare_fabrics(std::string_view text, Machine& machine);

}  // namespace hetcomm::topology
