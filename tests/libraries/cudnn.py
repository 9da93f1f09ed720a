"""cuDNN: layers forward and backward, recurrent layers, reductions, graphs, threads."""
import ctypes as c
import math

from support import Library, numbers, threads

ONE, ZERO = c.byref(c.c_float(1)), c.byref(c.c_float(0))
BATCH, CHANNELS, HIGH, WIDE = 2, 4, 8, 8
COUNT = BATCH * CHANNELS * HIGH * WIDE
BAD_PARAMETER = 2000


def tour(device):
    dnn = Library("cudnn")
    dnn.library.cudnnGetVersion.restype = c.c_size_t
    assert dnn.library.cudnnGetVersion() >= 8000
    handle = dnn.make("cudnnCreate")
    dnn.cudnnSetStream(handle, device.stream)
    tensor = image(dnn, BATCH, CHANNELS, HIGH, WIDE)
    for part in (activations, sums, softmax, pooling, convolution, normalisation, dropout, reduction, recurrent, captured):
        part(device, dnn, handle, tensor)
    dnn.refuses(BAD_PARAMETER, "cudnnSetTensor4dDescriptor", tensor, 0, 0, -1, 4, 8, 8)
    dnn.cudnnDestroyTensorDescriptor(tensor)
    dnn.cudnnDestroy(handle)
    threads(2, lambda n: alone(device, dnn))


def image(dnn, *shape):
    tensor = dnn.make("cudnnCreateTensorDescriptor")
    dnn.cudnnSetTensor4dDescriptor(tensor, 0, 0, *shape)
    return tensor


def activations(device, dnn, handle, tensor):
    values = numbers(COUNT)
    x, y, dy, dx = device.floats(values), device.space(4 * COUNT), device.floats([1] * COUNT), device.space(4 * COUNT)
    slopes = (lambda y: y * (1 - y), lambda y: float(y > 0), lambda y: 1 - y * y)  # as functions of the result
    for mode, function in ((0, lambda v: 1 / (1 + math.exp(-v))), (1, lambda v: max(0, v)), (2, math.tanh)):
        activation = dnn.make("cudnnCreateActivationDescriptor")
        dnn.cudnnSetActivationDescriptor(activation, mode, 0, c.c_double(0))
        dnn.cudnnActivationForward(handle, activation, ONE, tensor, x, ZERO, tensor, y)
        device.expect(y, map_(function, values))
        dnn.cudnnActivationBackward(handle, activation, ONE, tensor, y, tensor, dy, tensor, x, ZERO, tensor, dx)
        device.expect(dx, map_(slopes[mode], map_(function, values)))
        dnn.cudnnDestroyActivationDescriptor(activation)


def map_(function, values):
    return [function(value) for value in values]


def sums(device, dnn, handle, tensor):
    values, bias = numbers(COUNT), numbers(CHANNELS, 2)
    y, channels = device.floats(values), image(dnn, 1, CHANNELS, 1, 1)
    dnn.cudnnAddTensor(handle, ONE, channels, device.floats(bias), ONE, tensor, y)
    added = [value + bias[n // (HIGH * WIDE) % CHANNELS] for n, value in enumerate(values)]
    device.expect(y, added)
    dnn.cudnnScaleTensor(handle, tensor, y, c.byref(c.c_float(2)))
    device.expect(y, [2 * value for value in added])
    operation = dnn.make("cudnnCreateOpTensorDescriptor")
    dnn.cudnnSetOpTensorDescriptor(operation, 1, 0, 0)  # the product
    out = device.space(4 * COUNT)
    dnn.cudnnOpTensor(handle, operation, ONE, tensor, y, ONE, tensor, y, ZERO, tensor, out)
    device.expect(out, [4 * value * value for value in added])
    dnn.cudnnSetTensor(handle, tensor, y, c.byref(c.c_float(7)))
    device.expect(y, [7] * COUNT)
    dnn.cudnnDestroyOpTensorDescriptor(operation)
    dnn.cudnnDestroyTensorDescriptor(channels)


def softmax(device, dnn, handle, tensor):
    values = numbers(COUNT)
    x, y, plane = device.floats(values), device.space(4 * COUNT), HIGH * WIDE
    dnn.cudnnSoftmaxForward(handle, 1, 1, ONE, tensor, x, ZERO, tensor, y)  # over the channels
    wanted = []
    for n in range(COUNT):
        first = n // (CHANNELS * plane) * CHANNELS * plane + n % plane
        wanted.append(math.exp(values[n]) / sum(math.exp(values[first + k * plane]) for k in range(CHANNELS)))
    device.expect(y, wanted)
    dx = device.space(4 * COUNT)
    dnn.cudnnSoftmaxBackward(handle, 1, 1, ONE, tensor, y, tensor, x, ZERO, tensor, dx)
    sums_of = {}
    for n in range(COUNT):
        key = n // (CHANNELS * plane), n % plane
        sums_of[key] = sums_of.get(key, 0) + wanted[n] * values[n]
    device.expect(dx, [wanted[n] * (values[n] - sums_of[n // (CHANNELS * plane), n % plane]) for n in range(COUNT)])


def pooling(device, dnn, handle, tensor):
    values = numbers(COUNT)
    window, out = dnn.make("cudnnCreatePoolingDescriptor"), image(dnn, BATCH, CHANNELS, HIGH // 2, WIDE // 2)
    dnn.cudnnSetPooling2dDescriptor(window, 0, 0, 2, 2, 0, 0, 2, 2)
    x, y, dx = device.floats(values), device.space(COUNT), device.floats([9] * COUNT)
    dnn.cudnnPoolingForward(handle, window, ONE, tensor, x, ZERO, out, y)
    windows = [[plane + row * WIDE + column + step for step in (0, 1, WIDE, WIDE + 1)]
               for plane in range(0, COUNT, HIGH * WIDE) for row in range(0, HIGH, 2) for column in range(0, WIDE, 2)]
    wanted = [max(values[at] for at in places) for places in windows]
    device.expect(y, wanted)
    dy = numbers(len(wanted), 3)
    dnn.cudnnPoolingBackward(handle, window, ONE, out, y, out, device.floats(dy), tensor, x, ZERO, tensor, dx)
    got = device.read(dx, COUNT)
    # If a window has several maxima, the library may choose any of them.
    for places, most, slope in zip(windows, wanted, dy):
        device.same([sum(got[at] for at in places)], [slope])
        device.same([got[at] for at in places if values[at] != most], [0 for at in places if values[at] != most])
    dnn.cudnnDestroyPoolingDescriptor(window)
    dnn.cudnnDestroyTensorDescriptor(out)


def convolution(device, dnn, handle, tensor):
    filters, how = dnn.make("cudnnCreateFilterDescriptor"), dnn.make("cudnnCreateConvolutionDescriptor")
    dnn.cudnnSetFilter4dDescriptor(filters, 0, 0, CHANNELS, CHANNELS, 3, 3)
    dnn.cudnnSetConvolution2dDescriptor(how, 1, 1, 1, 1, 1, 1, 1, 0)
    values, weights = numbers(COUNT), numbers(CHANNELS * CHANNELS * 9, 2)
    x, w, y = device.floats(values), device.floats(weights), device.floats([0] * COUNT)
    choices, found = c.create_string_buffer(48 * 8), c.c_int()
    dnn.cudnnGetConvolutionForwardAlgorithm_v7(handle, tensor, filters, how, tensor, 8, c.byref(found), choices)
    assert found.value > 0
    size = c.c_size_t()
    dnn.cudnnGetConvolutionForwardWorkspaceSize(handle, tensor, filters, how, tensor, 0, c.byref(size))
    dnn.cudnnConvolutionForward(handle, ONE, tensor, x, filters, w, how, 0, device.space(size.value), size, ZERO, tensor, y)

    def at(n, channel, row, column):
        return values[((n * CHANNELS + channel) * HIGH + row) * WIDE + column] if 0 <= row < HIGH and 0 <= column < WIDE else 0

    def tap(out, into, row, column):
        return weights[((out * CHANNELS + into) * 3 + row) * 3 + column]

    taps = [(r, s) for r in range(3) for s in range(3)]
    points = [(i, j) for i in range(HIGH) for j in range(WIDE)]
    product = [sum(at(n, k, i + r - 1, j + s - 1) * tap(channel, k, r, s) for k in range(CHANNELS) for r, s in taps)
               for n in range(BATCH) for channel in range(CHANNELS) for i, j in points]
    device.expect(y, product, 1e-3)

    def slope(n, channel, row, column):
        return product[((n * CHANNELS + channel) * HIGH + row) * WIDE + column] if 0 <= row < HIGH and 0 <= column < WIDE else 0

    y = device.floats(product)
    dx, dw = device.space(4 * COUNT), device.space(4 * len(weights))
    dnn.cudnnGetConvolutionBackwardDataWorkspaceSize(handle, filters, tensor, how, tensor, 1, c.byref(size))
    dnn.cudnnConvolutionBackwardData(handle, ONE, filters, w, tensor, y, how, 1, device.space(size.value), size, ZERO, tensor, dx)
    dnn.cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, tensor, tensor, how, filters, 1, c.byref(size))
    dnn.cudnnConvolutionBackwardFilter(handle, ONE, tensor, x, tensor, y, how, 1, device.space(size.value), size, ZERO, filters, dw)
    device.expect(dx, [sum(slope(n, channel, i - r + 1, j - s + 1) * tap(channel, k, r, s) for channel in range(CHANNELS) for r, s in taps)
                       for n in range(BATCH) for k in range(CHANNELS) for i, j in points], 1e-3)
    device.expect(dw, [sum(slope(n, channel, i, j) * at(n, k, i + r - 1, j + s - 1) for n in range(BATCH) for i, j in points)
                       for channel in range(CHANNELS) for k in range(CHANNELS) for r, s in taps], 1e-3)
    dnn.cudnnDestroyConvolutionDescriptor(how)
    dnn.cudnnDestroyFilterDescriptor(filters)


def normalisation(device, dnn, handle, tensor):
    values = numbers(COUNT)
    few = dnn.make("cudnnCreateTensorDescriptor")
    dnn.cudnnDeriveBNTensorDescriptor(few, tensor, 1)
    x, y, ones, zeros = device.floats(values), device.space(4 * COUNT), device.floats([1] * CHANNELS), device.floats([0] * CHANNELS)
    mean, variance, saved_mean, saved_variance = (device.floats([0] * CHANNELS) for _ in range(4))
    epsilon = c.c_double(1e-5)
    dnn.cudnnBatchNormalizationForwardTraining(handle, 1, ONE, ZERO, tensor, x, tensor, y, few, ones, zeros, c.c_double(1), mean, variance, epsilon, saved_mean, saved_variance)
    plane, each = HIGH * WIDE, BATCH * HIGH * WIDE

    def channel_of(n):
        return n // plane % CHANNELS

    def mean_of(numbers_of_all, k):
        return sum(value for n, value in enumerate(numbers_of_all) if channel_of(n) == k) / each

    means = [mean_of(values, k) for k in range(CHANNELS)]
    variances = [mean_of([(value - means[k]) ** 2 for value in values], k) for k in range(CHANNELS)]
    deviations = [math.sqrt(one + epsilon.value) for one in variances]
    normal = [(value - means[channel_of(n)]) / deviations[channel_of(n)] for n, value in enumerate(values)]
    device.expect(mean, means, 1e-3)
    device.expect(variance, [one * each / (each - 1) for one in variances], 1e-3)  # the running one is unbiased
    device.expect(y, normal, 1e-3)
    mean, variance = device.floats(means), device.floats(variances)
    y = device.floats([9] * COUNT)
    dnn.cudnnBatchNormalizationForwardInference(handle, 1, ONE, ZERO, tensor, x, tensor, y, few, ones, zeros, mean, variance, epsilon)
    device.expect(y, normal, 1e-3)
    slopes, scale, shift = numbers(COUNT, 3), device.space(4 * CHANNELS), device.space(4 * CHANNELS)
    dnn.cudnnBatchNormalizationBackward(handle, 1, ONE, ZERO, ONE, ZERO, tensor, x, tensor, device.floats(slopes), tensor, y, few, ones, scale, shift, epsilon, saved_mean, saved_variance)
    shifts = [mean_of(slopes, k) * each for k in range(CHANNELS)]
    scales = [mean_of([a * b for a, b in zip(slopes, normal)], k) * each for k in range(CHANNELS)]
    device.expect(shift, shifts, 1e-3)
    device.expect(scale, scales, 1e-3)
    device.expect(y, [(slope - (shifts[k] + normal[n] * scales[k]) / each) / deviations[k]
                      for n, slope in enumerate(slopes) for k in [channel_of(n)]], 1e-3)
    dnn.cudnnDestroyTensorDescriptor(few)


def dropout(device, dnn, handle, tensor):
    how, size = dnn.make("cudnnCreateDropoutDescriptor"), c.c_size_t()
    dnn.cudnnDropoutGetStatesSize(handle, c.byref(size))
    states = device.space(size.value)
    dnn.cudnnSetDropoutDescriptor(how, handle, c.c_float(0.5), states, size, c.c_ulonglong(7))
    dnn.cudnnDropoutGetReserveSpaceSize(tensor, c.byref(size))
    y = device.space(4 * COUNT)
    dnn.cudnnDropoutForward(handle, how, tensor, device.floats([1] * COUNT), tensor, y, device.space(size.value), size)
    got = device.read(y, COUNT)
    assert not device.computes or (set(got) == {0, 2} and 0.3 < got.count(0) / COUNT < 0.7)
    dnn.cudnnDestroyDropoutDescriptor(how)


def reduction(device, dnn, handle, tensor):
    one, how, size = image(dnn, 1, 1, 1, 1), dnn.make("cudnnCreateReduceTensorDescriptor"), c.c_size_t()
    values, result = numbers(COUNT), device.floats([0])
    for operation, wanted in ((0, sum(values)), (3, max(values))):
        dnn.cudnnSetReduceTensorDescriptor(how, operation, 0, 0, 0, 0)
        dnn.cudnnGetReductionWorkspaceSize(handle, how, tensor, one, c.byref(size))
        dnn.cudnnReduceTensor(handle, how, None, c.c_size_t(0), device.space(size.value), size, ONE, tensor, device.floats(values), ZERO, one, result)
        device.expect(result, [wanted], 1e-3)
    dnn.cudnnDestroyReduceTensorDescriptor(how)
    dnn.cudnnDestroyTensorDescriptor(one)


def recurrent(device, dnn, handle, _):
    """Compares an LSTM's inference with its formulas."""
    hidden, inputs, steps, batch = 16, 8, 3, 2
    none, cell, data = dnn.make("cudnnCreateDropoutDescriptor"), dnn.make("cudnnCreateRNNDescriptor"), dnn.make("cudnnCreateRNNDataDescriptor")
    dnn.cudnnSetDropoutDescriptor(none, handle, c.c_float(0), None, c.c_size_t(0), c.c_ulonglong(0))
    dnn.cudnnSetRNNDescriptor_v8(cell, 0, 2, 2, 0, 0, 0, 0, 0, inputs, hidden, hidden, 1, none, 0)  # standard, LSTM, two biases, unidirectional
    lengths, padding = (c.c_int * batch)(*[steps] * batch), c.c_float(0)
    dnn.cudnnSetRNNDataDescriptor(data, 0, 1, steps, batch, inputs, lengths, c.byref(padding))
    out = dnn.make("cudnnCreateRNNDataDescriptor")
    dnn.cudnnSetRNNDataDescriptor(out, 0, 1, steps, batch, hidden, lengths, c.byref(padding))
    state = dnn.make("cudnnCreateTensorDescriptor")
    dnn.cudnnSetTensorNdDescriptor(state, 0, 3, (c.c_int * 3)(1, batch, hidden), (c.c_int * 3)(batch * hidden, hidden, 1))
    weights, work, reserve = c.c_size_t(), c.c_size_t(), c.c_size_t()
    dnn.cudnnGetRNNWeightSpaceSize(handle, cell, c.byref(weights))
    dnn.cudnnGetRNNTempSpaceSizes(handle, cell, 0, data, c.byref(work), c.byref(reserve))
    values, x = [value / 4 for value in numbers(weights.value // 4, 2)], numbers(steps * batch * inputs)
    there, y = device.floats(values), device.floats([1] * steps * batch * hidden)
    dnn.cudnnRNNForward(handle, cell, 0, device.integers([steps] * batch), data, device.floats(x), out, y,
                        state, None, None, state, None, None, weights, there, work, device.space(work.value), c.c_size_t(0), None)
    gates = lstm_gates(dnn, handle, cell, weights, there, values, inputs, hidden)
    device.expect(y, lstm(gates, x, steps, batch, inputs, hidden))
    for descriptor in (data, out):
        dnn.cudnnDestroyRNNDataDescriptor(descriptor)
    dnn.cudnnDestroyTensorDescriptor(state)
    dnn.cudnnDestroyRNNDescriptor(cell)
    dnn.cudnnDestroyDropoutDescriptor(none)


def lstm_gates(dnn, handle, cell, size, there, values, inputs, hidden):
    """Returns the matrices and biases of the input, forget, cell and output gates: first those for the input, then those for the state."""
    matrix, vector = dnn.make("cudnnCreateTensorDescriptor"), dnn.make("cudnnCreateTensorDescriptor")
    gates = []
    for gate in range(8):
        places = c.c_void_p(), c.c_void_p()
        dnn.cudnnGetRNNWeightParams(handle, cell, 0, size, there, gate, matrix, c.byref(places[0]), vector, c.byref(places[1]))
        columns = inputs if gate < 4 else hidden
        first, bias = ((place.value - there.value) // 4 for place in places)
        gates.append(([values[first + row * columns:first + (row + 1) * columns] for row in range(hidden)], values[bias:bias + hidden]))
    for descriptor in (matrix, vector):
        dnn.cudnnDestroyTensorDescriptor(descriptor)
    return gates


def lstm(gates, x, steps, batch, inputs, hidden):
    """Computes the state after each step of each sequence: x and the result are [step][sequence][element]."""
    def sigmoid(value):
        return 1 / (1 + math.exp(-value))

    y, states, cells = [], [[0] * hidden for _ in range(batch)], [[0] * hidden for _ in range(batch)]
    for step in range(steps):
        for sequence in range(batch):
            first = (step * batch + sequence) * inputs
            given, state, kept = x[first:first + inputs], states[sequence], cells[sequence]
            sums = []
            for of_input, of_state in zip(gates[:4], gates[4:]):
                sums.append([sum(map(lambda a, b: a * b, of_input[0][n], given)) + of_input[1][n] +
                             sum(map(lambda a, b: a * b, of_state[0][n], state)) + of_state[1][n] for n in range(hidden)])
            cells[sequence] = [sigmoid(f) * old + sigmoid(i) * math.tanh(new) for i, f, new, old in zip(sums[0], sums[1], sums[2], kept)]
            states[sequence] = [sigmoid(o) * math.tanh(value) for o, value in zip(sums[3], cells[sequence])]
            y += states[sequence]
    return y


def captured(device, dnn, handle, tensor):
    x, y = device.floats(numbers(COUNT)), device.floats([0] * COUNT)
    device.captured(lambda: dnn.cudnnAddTensor(handle, ONE, tensor, x, ONE, tensor, y), 3)
    device.expect(y, [3 * value for value in numbers(COUNT)])


def alone(device, dnn):
    handle, stream = dnn.make("cudnnCreate"), device.runtime.make("cudaStreamCreateWithFlags", 1)
    dnn.cudnnSetStream(handle, stream)
    tensor = image(dnn, BATCH, CHANNELS, HIGH, WIDE)
    x, y = device.floats([2] * COUNT), device.floats([0] * COUNT)
    for _ in range(3):
        dnn.cudnnAddTensor(handle, ONE, tensor, x, ONE, tensor, y)
    device.expect(y, [6] * COUNT, stream=stream)
    dnn.cudnnDestroyTensorDescriptor(tensor)
    dnn.cudnnDestroy(handle)
    device.runtime.cudaStreamDestroy(stream)
