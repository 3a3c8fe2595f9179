// Selects the SIMD targets for which code is generated. Include this file before any header of
// Highway.
#pragma once

// SSSE3 and AVX3_DL have no instructions for reductions that the preceding targets lack. For the
// other targets in this list, the size of a vector is not known at compile time, so the loops
// cannot have arrays of vectors.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
// Keeps the target EMU128 for gcc before 12.3. That compiler miscompiles the upper half of a
// product there (GCC bug 106322), but no reduction uses it. The alternative, SCALAR, has vectors of
// one lane and lacks half of the operations.
#define HWY_BROKEN_EMU128 0
