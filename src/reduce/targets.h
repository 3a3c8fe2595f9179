// Selects the SIMD targets that are generated. Include it before any header of Highway.
#pragma once

// The first two targets add nothing to their predecessors that reductions use. Vectors of the
// others have no size known to the compiler, so the loops cannot keep arrays of them.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
// The alternative has vectors of one lane and lacks half of the operations. gcc before 12.3
// miscomputes the upper half of a product (its bug 106322), which is not used here.
#define HWY_BROKEN_EMU128 0
