/* A user's program that plans without a job: prints the version of libhetcomm_plan and a layout. */
#include <stdio.h>

#include <hetcomm_plan/hetcomm_plan.h>

int main(void) {
  char text[256];
  size_t size = 0;
  const char* const layout =
      "{\"format\": \"hetcomm layout\", \"version\": 1, \"shape\": [4],"
      " \"parts\": [{\"rank\": 0, \"box\": [[0, 4]]}]}";
  if (hetcomm_draft_layout(layout, HETCOMM_PLAN_JSON, sizeof(text), text, &size) != HETCOMM_OK) {
    printf("%s\n", hetcomm_plan_last_error());
    return 1;
  }
  printf("%s %s", hetcomm_plan_version_string(), text);
  return 0;
}
