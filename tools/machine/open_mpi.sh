# What Open MPI must be told, by variables that no other MPI reads: more ranks than cores are no mistake, nor is root in
# a container; no rank is bound to a core. The Makefile includes this file; in a shell: . tools/machine/open_mpi.sh
# Open MPI 4:
export OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none
# Open MPI 5:
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export PRTE_MCA_hwloc_default_binding_policy=none
# both:
export OMPI_ALLOW_RUN_AS_ROOT=1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
