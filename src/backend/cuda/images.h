/* images.h - the compiled kernels, one image a .cu file; the table is made by the Makefile. */
#ifndef BACKEND_CUDA_IMAGES_H
#define BACKEND_CUDA_IMAGES_H

struct cuda_image {
    const char *name; /* NULL behind the last */
    const unsigned char *fatbin;
};
extern const struct cuda_image cuda_images[];

#endif
