#include "src/reshard/region.h"

namespace hetcomm::reshard {

Region region_of(const StridedBox& box, uint32_t tensor, uint64_t element_bytes, uint64_t base) {
  Region region;
  region.memory = box.memory;
  region.tensor = tensor;
  region.offset = base + box.offset * element_bytes;
  region.row_bytes = element_bytes;
  size_t dimensions = box.dimensions;
  if (dimensions > 0 && box.strides[dimensions - 1] == 1) {
    region.row_bytes *= box.extents[--dimensions];
  }
  region.dimensions = dimensions;
  for (size_t d = 0; d < dimensions; ++d) {
    region.extents[d] = box.extents[d];
    region.strides[d] = box.strides[d] * element_bytes;
    region.rows *= box.extents[d];
  }
  return region;
}

}  // namespace hetcomm::reshard
