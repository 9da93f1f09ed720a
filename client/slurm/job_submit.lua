-- For slurm.conf: JobSubmitPlugins=lua and Licenses=gpupool:PERCENT, with this file as job_submit.lua beside slurm.conf
-- (docs/slurm.md). A job with --gpupool also requests licences: one for each percent of a GPU, so that jobs wait in
-- Slurm's queue, by Slurm's priorities, while the pool's GPUs are taken, and so that Slurm's accounting counts them.

local license = "gpupool"

-- Returns the address that the plugin has passed on, or nil if the job does not use the pool.
local function pool_request(job)
  for _, variable in pairs(job.spank_job_env or {}) do
    local address = string.match(variable, "^SPANK_GPUPOOL_REQUEST=(.*)$") or string.match(variable, "^GPUPOOL_REQUEST=(.*)$")
    if address then return address end
  end
  return nil
end

-- Returns the percent of GPUs that the request takes; nil if it is not a number.
local function percent(address)
  local gpus = string.match(address, "[?&]gpus=([^&]*)") or "1"
  local compute = string.match(address, "[?&]compute=([^&]*)") or "100"
  local product = (tonumber(gpus) or 0) * (tonumber(compute) or 0)
  return product > 0 and math.ceil(product) or nil
end

function slurm_job_submit(job, partitions, user)
  local address = pool_request(job)
  if not address then return slurm.SUCCESS end
  local count = percent(address)
  if not count then
    slurm.log_user("gpupool: gpus and compute of --gpupool must be numbers above 0")
    return slurm.ERROR
  end
  local wanted = license .. ":" .. count
  job.licenses = job.licenses and job.licenses ~= "" and job.licenses .. "," .. wanted or wanted
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, user)
  return slurm.SUCCESS
end

slurm.log_info("gpupool: jobs with --gpupool request licences '%s'", license)
return slurm.SUCCESS
