// Selects the SIMD targets that are generated. Include it before any header of Highway.
#pragma once

// SSSE3 and AVX3_DL add nothing that reductions use to the targets before them. The compiler does
// not know the size of the other targets' vectors, so the loops cannot keep arrays of them.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
// Keeps the target EMU128 with gcc before 12.3, which miscomputes the upper half of a product there
// (bug 106322 of gcc): no reduction uses that. The alternative, SCALAR, has vectors of one lane and
// lacks half of the operations.
#define HWY_BROKEN_EMU128 0
