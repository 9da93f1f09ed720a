# The files that `cmake --install BUILD --prefix PREFIX [--component NAME]` installs. This is the only list of them:
# scripts/package.sh makes a package of each component, scripts/make-bundle.sh an archive of all.
# The programs find each other and the libraries by their places in PREFIX, which may be any folder: bin/, lib/client/, lib/softgpu/.
# These are the built files as they are. Shared libraries from outside the tree are not among them; both scripts add those.
function(gpupool_install component folder)
  foreach(target ${ARGN})
    install(PROGRAMS $<TARGET_FILE:${target}> DESTINATION ${folder} COMPONENT ${component})
  endforeach()
endfunction()
# Libraries, with the link libNAME.so: some programs open that name first.
function(gpupool_install_libraries component folder)
  foreach(target ${ARGN})
    install(FILES $<TARGET_FILE:${target}> $<TARGET_LINKER_FILE:${target}> DESTINATION ${folder} COMPONENT ${component})
  endforeach()
endfunction()

gpupool_install(client bin pool-run pool-lease pool-smi pool-cdi)
gpupool_install_libraries(client lib/client client client_nvml)
install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/client/python/jax_plugins DESTINATION lib/client/python COMPONENT client
  FILES_MATCHING PATTERN "*.py" PATTERN __pycache__ EXCLUDE)

gpupool_install(server bin poold poold-worker)
gpupool_install_libraries(softgpu lib/softgpu softgpu_driver softgpu_nvml)
gpupool_install(scheduler bin pool-scheduler pool-sim)
gpupool_install(admin bin pool-admin)
gpupool_install(kubernetes bin gpupool-kubernetes)  # in the archive and the image; no package

if(TARGET spank_gpupool)  # client/slurm
  gpupool_install(slurm lib/slurm spank_gpupool)
  install(PROGRAMS ${CMAKE_CURRENT_SOURCE_DIR}/client/slurm/end-stale-leases.sh ${CMAKE_CURRENT_SOURCE_DIR}/client/slurm/limit-folder.sh DESTINATION lib/slurm COMPONENT slurm)
  install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/client/slurm/job_submit.lua DESTINATION lib/slurm COMPONENT slurm)
endif()
