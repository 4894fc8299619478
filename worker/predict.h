/* predict.h - policy and value for records, from a model file alone. */
#pragma once
#include <stdio.h>
#include "schema/err.h"

/* One line of JSON per record of the file `records` ("-": standard input):
 * {"policy": […], "value": x}, without what the model does not have. The model
 * file is a safetensors file as `GET …/model` gives it. */
int predict_file(const char *model, const char *records, FILE *out,
                 struct err *err);
