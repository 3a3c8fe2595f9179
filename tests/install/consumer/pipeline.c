/* A user's program that would run a pipeline: prints the version of libhetcomm_pipeline, and what
 * it says to a communicator that is not there. */
#include <stdio.h>

#include <hetcomm/pipeline.h>

int main(void) {
  hetcomm_pipeline_t* pipeline = NULL;
  if (hetcomm_pipeline_create(NULL, "{}", NULL, 0, NULL, &pipeline) == HETCOMM_OK) return 1;
  printf("%s %s\n", hetcomm_pipeline_version_string(), hetcomm_pipeline_last_error());
  return 0;
}
