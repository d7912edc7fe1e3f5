/* hub_config.h - what config.json says that all architectures share; used by hub.c alone. */
#ifndef MODEL_HUB_CONFIG_H
#define MODEL_HUB_CONFIG_H

#include "model/hub.h"

/* Fills the dimensions of h from its folder's config; refuses what is not supported. */
int hub_read_config(struct hub *h, struct err *err);

/* The divisors of the rotary frequencies under Llama 3 scaling: head_dim / 2 values in the hub's
 * arena, or NULL when the model scales otherwise. */
int hub_rope_divisors(struct hub *h, float **out, struct err *err);

#endif
